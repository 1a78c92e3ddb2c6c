"""V50: a pair of models must agree on what every shared id means."""

from __future__ import annotations

from typing import Any

import pytest

import text_vocabularies as vocabularies
from foreword.text.compatible import compatible
from foreword.text.gguf_vocabulary import load_gguf
from text_vocabularies import byte_metadata

TOKENS = byte_metadata()["tokenizer.ggml.tokens"]
TYPES = byte_metadata()["tokenizer.ggml.token_type"]


def swapped(one: int, other: int) -> dict[str, Any]:
    tokens = list(TOKENS)
    tokens[one], tokens[other] = tokens[other], tokens[one]
    return byte_metadata(tokens=tokens)


def with_tokens(start: int, *more: tuple[str, int]) -> dict[str, Any]:
    """The vocabulary up to `start`, then (text, type) pairs."""
    tokens = [*TOKENS[:start], *(text for text, _ in more)]
    kinds = [*TYPES[:start], *(kind for _, kind in more)]
    return byte_metadata(tokens=tokens, token_type=kinds, bos_token_id=None, eos_token_id=None)


def test_v50_different_vocabularies_name_the_first_id():
    message = compatible(vocabularies.smollm2(), vocabularies.bytes_tokenizer())
    assert message is not None
    assert "at id 0:" in message
    assert "'<|endoftext|>'" in message
    assert compatible(vocabularies.smollm2(), vocabularies.smollm2()) is None


@pytest.mark.parametrize(("one", "other"), [(97, 98), (0, 255), (259, 260)])
def test_v50_two_swapped_ids_are_found(one: int, other: int):
    """Normal tokens and control tokens alike."""
    message = compatible(vocabularies.bytes_tokenizer(), load_gguf(swapped(one, other)))
    assert message is not None
    assert f"at id {one}:" in message


@pytest.mark.parametrize(
    "other",
    [
        with_tokens(259),
        with_tokens(261, ("<|new|>", 3), ("<extra>", 4)),
        with_tokens(261, ("[PAD261]", 5), ("[PAD262]", 5)),
        with_tokens(260, ("<|other|>", 3)),
    ],
)
def test_v50_unused_specials_and_padding_are_compatible(other: dict[str, Any]):
    pair = vocabularies.bytes_tokenizer(), load_gguf(other)
    assert compatible(*pair) is None
    assert compatible(*reversed(pair)) is None


@pytest.mark.parametrize(
    "other",
    [
        with_tokens(260, ("<|new|>", 3), ("<|end|>", 3)),
        with_tokens(260, ("end", 1)),
        with_tokens(258, ("<|start|>", 3), ("<tool>", 4)),
    ],
)
def test_v50_a_control_token_that_moved_is_found(other: dict[str, Any]):
    assert compatible(vocabularies.bytes_tokenizer(), load_gguf(other)) is not None


def test_v50_spellings_differ_but_bytes_agree():
    """A pair is judged by what ids mean, not by how its files spell them."""
    tokens = ["a", "▁b", "</s>"]
    spm = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1, 1, 3],
        "tokenizer.ggml.scores": [0.0] * 3,
        "tokenizer.ggml.add_bos_token": False,
    }
    bpe = byte_metadata(
        tokens=["a", "Ġb", "</s>"], token_type=[1, 1, 3], merges=None,
        bos_token_id=None, eos_token_id=2,
    )  # fmt: skip
    bpe["tokenizer.ggml.merges"] = ["a Ġb"]
    with pytest.raises(Exception, match="merges"):
        load_gguf(bpe)
    bpe["tokenizer.ggml.tokens"], bpe["tokenizer.ggml.merges"] = (
        ["a", "Ġb", "</s>", "aĠb"],
        ["a Ġb"],
    )
    bpe["tokenizer.ggml.token_type"] = [1, 1, 3, 1]
    assert compatible(load_gguf(spm), load_gguf(bpe)) is None
