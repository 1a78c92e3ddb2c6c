"""Vocabularies for the text tests: SmolLM2's own, bytes, a SentencePiece toy, and random text.

Reference tokenizers are built here from the published pipelines with the `tokenizers` library
alone, so that a test can compare ids with something that knows nothing of the package.
"""

from __future__ import annotations

import os
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers import (
    Tokenizer as Reference,
)

import apparatus
from foreword.text.gguf_vocabulary import load_gguf
from foreword.text.token_bytes import byte_alphabet
from foreword.text.tokenizer import Tokenizer

CONTROL, USER_DEFINED, UNUSED, BYTE = 3, 4, 5, 6
# A part of the file that holds at least the header; https://huggingface.co/Qwen has whole ones.
QWEN_FILE = os.environ.get("FOREWORD_TEST_QWEN_GGUF", "")


@cache
def smollm2_metadata() -> dict[str, Any]:
    return _header(apparatus.smollm2_path())


@cache
def smollm2() -> Tokenizer:
    return load_gguf(smollm2_metadata())


def smollm2_reference() -> Reference:
    """The pipeline of SmolLM2's published tokenizer.json: single digits, then GPT-2's words."""
    metadata = smollm2_metadata()
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    reference = Reference(
        models.BPE(vocab={text: token for token, text in enumerate(tokens)}, merges=merges)
    )
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    reference.decoder = decoders.ByteLevel()
    controls = [text for text, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    reference.add_special_tokens([AddedToken(text, normalized=False) for text in controls])
    return reference


def split_reference(expression: str, *, nfc: bool = False) -> Reference:
    """SmolLM2's vocabulary under one split expression, as Qwen2 and Llama 3 publish theirs."""
    reference = smollm2_reference()
    if nfc:
        reference.normalizer = normalizers.NFC()
    reference.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return reference


def byte_metadata(**changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary: 256 bytes, "ab", " a", one tool tag, two control tokens."""
    alphabet = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    tokens = [*alphabet, "ab", "Ġa", "<tool>", "<|start|>", "<|end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 258 + [USER_DEFINED, CONTROL, CONTROL],
        "tokenizer.ggml.merges": ["a b", "Ġ a"],
        "tokenizer.ggml.bos_token_id": 259,
        "tokenizer.ggml.eos_token_id": 260,
        "tokenizer.chat_template": (
            "{{ bos_token }}{% for message in messages %}{{ message.role }}: "
            "{{ message.content }}{{ eos_token }}\n{% endfor %}"
            "{% if add_generation_prompt %}assistant: {% endif %}"
        ),
    }
    return changed(metadata, **changes)


def sentencepiece_metadata(**changes: Any) -> dict[str, Any]:
    """A SentencePiece toy: control pieces, all byte pieces, and a few words with scores."""
    pieces = ["▁", "l", "e", "a", "d", "i", "n", "g", "x", "h", "o"]
    words = [
        "▁l",
        "ea",
        "in",
        "ing",
        "ding",
        "▁lea",
        "▁leading",
        "▁x",
        "he",
        "▁he",
        "lo",
        "llo",
        "▁hello",
    ]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *pieces]
    kinds = [2, CONTROL, CONTROL, *[BYTE] * 256, *[1] * (len(words) + len(pieces))]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(words) + len(pieces))]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return changed(metadata, **changes)


def changed(metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """`metadata` with tokenizer.ggml fields replaced; None removes one."""
    result = dict(metadata)
    for name, value in changes.items():
        key = name if name.startswith("tokenizer.") else f"tokenizer.ggml.{name}"
        result[key] = value
        if value is None:
            del result[key]
    return result


@cache
def bytes_tokenizer() -> Tokenizer:
    return load_gguf(byte_metadata())


@cache
def sentencepiece() -> Tokenizer:
    return load_gguf(sentencepiece_metadata())


_ODD = [
    *("12345", "Ünïcödé 's  \n\n", "e\u0301 and \u00e9", "ｶﾞ half", "a\r\n\r\nb", "\tx\t\ty"),
    *(
        "  two",
        "   ",
        " \n \n",
        "don't I'LL we'Ve",
        "x=1;y+=2",
        "½ Ⅷ ٣",
        "\u200d\ufe0f",
        "\x00\x7f",
    ),
    *("A 世a", "삼겹살", "\U0001f468\u200d\U0001f680", "\U0001f3f3\ufe0f\u200d\U0001f308", ""),
    *("<|im_end|>", "a<|im_start|>b", "<|im_", "\u00a0\u3000", "ß\u0327\u0323"),
]


def strings(count: int, seed: int = 0) -> list[str]:
    """Fixed odd texts, then random ones over every plane, scripts mixed with blanks and digits."""
    generator = random.Random(seed)
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x600)]
    ranges += [(0x900, 0xE00), (0x3000, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A4)]
    ranges += [(0xE000, 0xFDD0), (0x10000, 0x20000), (0x1F300, 0x1FA00), (0x20000, 0x110000)]
    blanks = [" ", "  ", "\n", "\t", "\r\n", "'s", "12", ". "]
    texts = list(_ODD)
    while len(texts) < count:
        pieces = []
        for _ in range(generator.randrange(1, 24)):
            low, high = generator.choice(ranges)
            pieces.append(chr(generator.randrange(low, high)))
            if generator.random() < 0.3:
                pieces.append(generator.choice(blanks))
        texts.append("".join(pieces))
    return texts[:count]


@cache
def qwen2_metadata() -> dict[str, Any]:
    """Header of the GGUF named by FOREWORD_TEST_QWEN_GGUF; the tensors may be missing."""
    return _header(Path(QWEN_FILE))


def _header(path: Path) -> dict[str, Any]:
    """Metadata of a GGUF, read by these lines alone."""
    with path.open("rb") as file:
        magic, _version, _tensors, count = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF"
        found = {}
        for _ in range(count):
            key = _value(file, 8)
            (kind,) = struct.unpack("<I", file.read(4))
            found[key] = _value(file, kind)
    return found


_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == 8:
        (length,) = struct.unpack("<Q", file.read(8))
        return file.read(length).decode("utf-8")
    if kind == 9:
        item, count = struct.unpack("<IQ", file.read(12))
        return [_value(file, item) for _ in range(count)]
    form = "<" + _FORMATS[kind]
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]
