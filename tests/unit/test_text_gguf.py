"""Tokenizers rebuilt from GGUF metadata give the ids of the published pipelines."""

from __future__ import annotations

from typing import Any

import pytest

import text_vocabularies as vocabularies
from foreword.errors import UnsupportedModel, WeightsError
from foreword.text.gguf_vocabulary import load_gguf, merges_from_scores
from foreword.text.pretokenizers import PRETOKENIZERS
from foreword.text.template import encode_chat
from text_vocabularies import byte_metadata, changed, sentencepiece_metadata, smollm2_metadata

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def test_smollm2_ids_equal_the_published_pipeline_on_500_strings():
    """V74: digits, blanks, CRLF, combining marks, half width, every plane."""
    texts = vocabularies.strings(500)
    reference = vocabularies.smollm2_reference()
    for text in texts:
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert vocabularies.smollm2().encode(text) == wanted, repr(text)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("Hello", [19556]),
        (" Hello", [38699]),
        ("12345", [33, 34, 35, 36, 37]),
        ("Ünïcödé", [142, 246, 94, 25972, 83, 7466, 84, 2756]),
        ("\nHuman:", [198, 14917, 42]),
        ("red green", [455, 2654]),
        (" lazy", [23790]),
        (" dog", [2767]),
        ("\U0001f99c", [10813, 116, 246]),
    ],
)
def test_v85_v74_computed_smollm2_ids(text: str, ids: list[int]):
    assert vocabularies.smollm2().encode(text) == ids


@pytest.mark.parametrize(
    ("name", "expression", "nfc"), [("llama-bpe", LLAMA3, False), ("qwen2", QWEN2, True)]
)
def test_v85_other_pretokenizers_on_the_same_vocabulary(name: str, expression: str, nfc: bool):
    """V74, V85: 300 strings under the published expressions of Llama 3 and Qwen2."""
    tokenizer = load_gguf(changed(smollm2_metadata(), pre=name, add_bos_token=False))
    reference = vocabularies.split_reference(expression, nfc=nfc)
    reference.model.ignore_merges = name == "llama-bpe"
    for text in vocabularies.strings(300, seed=1):
        wanted = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == wanted, repr(text)


def test_v85_each_pretokenizer_cuts_its_own_way():
    """V85: the text of the case under every name; no name is silently another."""
    text = "12345 Ünïcödé 's  \n\n"
    cuts = {}
    for name in PRETOKENIZERS:
        raw = load_gguf(byte_metadata(pre=name)).raw
        text_normal = raw.normalizer.normalize_str(text) if raw.normalizer else text
        cuts[name] = [
            text_normal[start:end]
            for _, (start, end) in raw.pre_tokenizer.pre_tokenize_str(text_normal)
        ]
    one_by_one = ["1", "2", "3", "4", "5"]
    assert cuts["smollm"] == [*one_by_one, " Ünïcödé", " '", "s", "  \n\n"]
    assert cuts["gpt-2"] == ["12345", " Ünïcödé", " '", "s", "  \n\n"]
    assert cuts["qwen2"] == [*one_by_one, " Ünïcödé", " '", "s", "  \n\n"]
    assert cuts["llama-bpe"] == ["123", "45", " Ünïcödé", " '", "s", "  \n\n"]
    assert cuts["default"] == ["123", "45", " Ünïcödé", " ", "'", "s", "  \n\n"]
    assert cuts["tekken"] == [*one_by_one, " Ünïcödé", " '", "s", "  \n\n"]
    assert cuts["deepseek-coder"][:5] == one_by_one


@pytest.mark.parametrize("name", ["zzz", None, "", 7])
def test_v85_an_unknown_or_absent_pretokenizer_is_refused(name: Any):
    with pytest.raises(UnsupportedModel, match=r"tokenizer\.ggml\.pre .*tokenizer\.json"):
        load_gguf(byte_metadata(pre=name))


def test_v86_flags_of_the_header_are_honoured():
    """V86: both False in SmolLM2; flipped in a copied header; absent: true for SPM, not BPE."""
    plain = smollm2_metadata()
    assert vocabularies.smollm2().encode("Hello") == [19556]
    assert load_gguf(changed(plain, add_bos_token=True)).encode("Hello") == [1, 19556]
    assert load_gguf(changed(plain, add_eos_token=True)).encode("Hello") == [19556, 2]
    spaced = load_gguf(changed(plain, add_space_prefix=True))
    assert spaced.encode("Hello") == [38699] == spaced.encode(" Hello")
    absent = load_gguf(changed(plain, add_bos_token=None, add_space_prefix=None))
    assert absent.encode("Hello") == [19556]


def test_v86_sentencepiece_flags():
    spm = vocabularies.sentencepiece()
    hello = spm.raw.token_to_id("▁hello")
    assert spm.encode("hello") == [1, hello]
    assert spm.encode("hello", add_special_tokens=False) == [hello]
    bare = load_gguf(sentencepiece_metadata(add_bos_token=False, add_space_prefix=False))
    assert [bare.token_text(token) for token in bare.encode("hello")] == ["he", "llo"]
    assert load_gguf(sentencepiece_metadata(add_eos_token=True)).encode("hello") == [1, hello, 2]
    assert load_gguf(byte_metadata(pre="llama-bpe")).encode("b") == [259, 98]


def test_v86_a_flag_without_its_token_is_an_error():
    with pytest.raises(WeightsError, match="add_bos_token is true but bos_token"):
        load_gguf(byte_metadata(add_bos_token=True, bos_token_id=None))


def test_v87_embedded_chat_template_is_used():
    ids = encode_chat(vocabularies.smollm2(), [{"role": "user", "content": "Hello"}])
    assert len(ids) == 31
    named = byte_metadata(**{"tokenizer.chat_template.tool_use": "T"})
    assert load_gguf(named).chat_templates["tool_use"] == "T"
    assert load_gguf(byte_metadata(**{"tokenizer.chat_template": None})).chat_template is None


def test_merges_follow_scores_and_skip_control_pieces():
    normal = {"a": 0, "b": 1, "ab": 2, "c": 3, "bc": 4, "abc": 5}
    merges = merges_from_scores(normal, [0.0, 0.0, -2.0, 0.0, -1.0, -3.0])
    assert merges == [("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]
    spm = vocabularies.sentencepiece()
    assert spm.special_ids == {0, 1, 2}
    assert spm.encode("</s", add_special_tokens=False)[-3:] == [63, 50, 118]  # byte pieces


def test_rows_without_a_meaning_are_not_tokens():
    tokens = [*byte_metadata()["tokenizer.ggml.tokens"], "[PAD261]", "[PAD262]"]
    types = [*byte_metadata()["tokenizer.ggml.token_type"], 5, 5]
    tokenizer = load_gguf(byte_metadata(tokens=tokens, token_type=types))
    assert tokenizer.vocab_size == 261
    assert tokenizer.token_text(261) == ""
    assert tokenizer.encode("[PAD261]") == list(b"[PAD261]")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "no tokenizer.ggml.tokens"),
        ({"merges": None}, "no tokenizer.ggml.merges"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"merges": ["ab"]}, "not a pair"),
        ({"merges": ["a q9"]}, "does not fit its merges"),
        ({"eos_token_id": 999}, "eos_token_id is 999"),
        ({"model": "bert"}, "tokenizer.ggml.model is 'bert'"),
    ],
)
def test_damaged_metadata_is_named(changes: dict[str, Any], message: str):
    with pytest.raises(WeightsError, match=message):
        load_gguf(byte_metadata(**changes))


@pytest.mark.skipif(
    not vocabularies.QWEN_FILE,
    reason="FOREWORD_TEST_QWEN_GGUF names no Qwen2 GGUF (header is enough)",
)
def test_v74_qwen2_vocabulary():
    """V74: the real vocabulary composes (NFC) and takes digits one by one."""
    tokenizer = load_gguf(vocabularies.qwen2_metadata())
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9") == [963]
    assert tokenizer.encode("12345") == [16, 17, 18, 19, 20]
    assert tokenizer.encode("\U0001f99c") == [123918, 250]
    assert tokenizer.vocab_size == 151665
    for text in vocabularies.strings(300):
        if tokenizer.raw.normalizer.normalize_str(text) == text:
            assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
