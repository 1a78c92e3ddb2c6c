"""A Tokenizer rebuilt from GGUF metadata, with the ids the model's own tokenizer.json would give.

Two kinds: "gpt2" (byte-level BPE with merges and a named pre-tokenizer) and "llama" (SentencePiece
BPE with scores). Takes a plain mapping of metadata keys; knows nothing of the file they came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from foreword.errors import ForewordError, UnsupportedModel, WeightsError
from foreword.text.folder import set_ends
from foreword.text.pretokenizers import find_pretokenizer
from foreword.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
ROLES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "eot_token": "eot_token_id",
    "eom_token": "eom_token_id",
}
_PADDING = re.compile(r"\[PAD\d+\]")


def load_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """`metadata`: GGUF keys to plain values (lists for arrays).

    Raises UnsupportedModel for a tokenizer kind or pre-tokenizer name that is not known exactly,
    and WeightsError for lists that are missing or do not fit each other.
    """
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise UnsupportedModel(
            f"tokenizer.ggml.model is {kind!r}; Foreword rebuilds {', '.join(builders)}. "
            "Use the model's Hugging Face folder with its tokenizer.json"
        )
    tokens = [str(token) for token in _array(metadata, "tokens")]
    types = _types(metadata, tokens)
    vocabulary = {
        token: index
        for index, token in enumerate(tokens)
        if not (types[index] == UNUSED and _PADDING.fullmatch(token))  # rows without a meaning
    }
    try:
        raw, config = builders[kind](metadata, tokens, types, vocabulary)
    except ForewordError:
        raise
    except Exception as error:  # the Rust library raises bare Exception
        raise WeightsError(f"GGUF vocabulary does not fit its merges: {error}") from None
    raw.add_tokens(
        [
            AddedToken(token, special=types[index] != USER_DEFINED, normalized=False)
            for token, index in vocabulary.items()
            if types[index] in (UNKNOWN, CONTROL, USER_DEFINED)
        ]
    )
    config.update(_roles(metadata, tokens))
    if templates := _templates(metadata):
        config["chat_template"] = templates
    set_ends(raw, config)
    return Tokenizer(raw, config)


Built = tuple[tokenizers.Tokenizer, dict[str, Any]]


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], vocabulary: dict[str, int]
) -> Built:
    rules = find_pretokenizer(metadata.get("tokenizer.ggml.pre"))
    merges = [_pair(merge) for merge in _array(metadata, "merges")]
    raw = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rules.ignore_merges)
    )
    steps: list[Any] = [normalizers.NFC()] if rules.nfc else []
    if _flag(metadata, "add_space_prefix", False):
        steps += [normalizers.Prepend(" "), normalizers.Replace(tokenizers.Regex(r"\A  "), " ")]
    if steps:
        raw.normalizer = steps[0] if len(steps) == 1 else normalizers.Sequence(steps)
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(tokenizers.Regex(split), "isolated") for split in rules.splits),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    return raw, _flags(metadata, rules.add_bos)


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], types: list[int], vocabulary: dict[str, int]
) -> Built:
    scores = [float(score) for score in _array(metadata, "scores")]
    if len(scores) != len(tokens):
        raise WeightsError(
            f"tokenizer.ggml.scores has {len(scores)} entries for {len(tokens)} tokens"
        )
    unknown = [tokens[index] for index, kind in enumerate(types) if kind == UNKNOWN]
    normal = {
        token: vocabulary[token] for token in vocabulary if types[vocabulary[token]] == NORMAL
    }
    raw = tokenizers.Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges_from_scores(normal, scores),
            unk_token=unknown[0] if unknown else None,
            fuse_unk=True,
            byte_fallback=BYTE in types,
        )
    )
    prefix = _flag(metadata, "add_space_prefix", True)
    replace = normalizers.Replace(" ", "▁")
    raw.normalizer = (
        normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    )
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return raw, _flags(metadata, True)


def merges_from_scores(normal: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Merges of a SentencePiece BPE vocabulary: every split of a piece into two pieces, best score
    first; among equal scores the longer left half, then the longer right half, then vocabulary
    order. Control, byte and user-defined pieces are never the product of a merge."""
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for piece, index in normal.items():
        halves = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        pairs = [pair for pair in halves if pair[0] in normal and pair[1] in normal]
        pairs.sort(key=lambda pair: (normal[pair[0]], normal[pair[1]]))
        found += [(scores[index], len(left), len(right), (left, right)) for left, right in pairs]
    found.sort(key=lambda entry: entry[:3], reverse=True)
    return [entry[3] for entry in found]


def _array(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None or isinstance(value, str) or len(value) == 0:
        raise WeightsError(
            f"GGUF metadata has no tokenizer.ggml.{name}; convert the model again, or use its "
            "Hugging Face folder"
        )
    return list(value)


def _types(metadata: Mapping[str, Any], tokens: list[str]) -> list[int]:
    types = [int(kind) for kind in _array(metadata, "token_type")]
    if len(types) != len(tokens):
        raise WeightsError(
            f"tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
        )
    if len(set(tokens)) != len(tokens):
        raise WeightsError("tokenizer.ggml.tokens lists a token twice; convert the model again")
    return types


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise WeightsError(f"tokenizer.ggml.merges holds {merge!r}, which is not a pair of tokens")
    return left, right


def _flag(metadata: Mapping[str, Any], name: str, absent: bool) -> bool:
    return bool(metadata.get(f"tokenizer.ggml.{name}", absent))


def _flags(metadata: Mapping[str, Any], add_bos: bool) -> dict[str, Any]:
    return {
        "add_bos_token": _flag(metadata, "add_bos_token", add_bos),
        "add_eos_token": _flag(metadata, "add_eos_token", False),
    }


def _roles(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, str]:
    """Special tokens by role. Raises WeightsError for an id outside the vocabulary."""
    found: dict[str, str] = {}
    for role, key in ROLES.items():
        index = metadata.get(f"tokenizer.ggml.{key}")
        if index is None:
            continue
        if not 0 <= int(index) < len(tokens):
            raise WeightsError(f"tokenizer.ggml.{key} is {index}, outside {len(tokens)} tokens")
        found[role] = tokens[int(index)]
    return found


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """tokenizer.chat_template, and named ones as tokenizer.chat_template.NAME."""
    start = "tokenizer.chat_template"
    found = {"default": str(metadata[start])} if metadata.get(start) else {}
    for key, value in metadata.items():
        if key.startswith(start + "."):
            found[key[len(start) + 1 :]] = str(value)
    return found
