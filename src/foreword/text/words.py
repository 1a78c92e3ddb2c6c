"""Texts a request names -> ids its processors look for: `bad_words` and `dry_sequence_breakers`."""

from __future__ import annotations

from collections.abc import Sequence

from foreword.text.checks import check_text
from foreword.text.tokenizer import Tokenizer


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The id sequences of each word as a text begins with it and as it follows a space (the two
    variants vLLM forbids). Another way to spell a word in ids is another sequence, and is not
    found. Raises RequestError for an unpaired surrogate."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        check_text(word, "bad_words")
        bare = word.lstrip(" ")
        for text in (bare, " " + bare):
            ids = tuple(tokenizer.encode(text, add_special_tokens=False))
            if ids:
                found[ids] = None
    return tuple(found)


def breaker_ids(tokenizer: Tokenizer, breakers: Sequence[str]) -> frozenset[int]:
    """Ids whose text holds one of `breakers`; of a breaker longer than any token's text, the last
    id of its own encoding. Raises RequestError for an unpaired surrogate."""
    wanted = []
    for breaker in breakers:
        check_text(breaker, "dry_sequence_breakers")
        wanted.append(breaker.encode())
    texts = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    found: set[int] = set()
    for breaker, text in zip(breakers, wanted, strict=True):
        holding = [token for token, content in enumerate(texts) if text in content]
        found.update(holding or tokenizer.encode(breaker, add_special_tokens=False)[-1:])
    return frozenset(found)
