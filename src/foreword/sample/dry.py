"""DRY ("don't repeat yourself"): an id that goes on with a long repetition becomes less likely.

Let x be prompt and output, its last `dry_penalty_last_n` ids (-1: all). For an earlier place i, n
is the length of the longest stretch of ids that ends at i and also ends x, no breaker inside; where
n >= dry_allowed_length, the id x[i + 1] loses

    dry_multiplier * dry_base ** (n - dry_allowed_length)

for the longest such n of that id; breakers (`Request.dry_breakers`, made by the door) lose nothing.
The power is repeated multiplication in float64, at most LARGEST, rounded to float32 once. (p-e-w,
text-generation-webui pull request 5677, 2024; llama.cpp has the same.)
"""

from __future__ import annotations

import numpy as np

from foreword.protocols import ADD, Edit, Logits
from foreword.sample.edits import EditRule
from foreword.sample.portable import Ids
from foreword.types import Request, SamplingParams

LARGEST = 1e30


class Dry(EditRule):
    def __init__(
        self, params: SamplingParams, prompt_ids: tuple[int, ...], breakers: frozenset[int]
    ) -> None:
        self._multiplier, self._base = params.dry_multiplier, params.dry_base
        self._allowed, self._last_n = params.dry_allowed_length, params.dry_penalty_last_n
        self._breakers = breakers
        self._length = len(prompt_ids)
        self._tokens: Ids = np.empty(2 * self._length + 64, dtype=np.int64)
        self._tokens[: self._length] = prompt_ids
        self._matches = match_lengths(list(prompt_ids), breakers)  # at each place but the last
        self._edit = self._make()

    def edit(self, position: int) -> Edit | None:
        return self._edit

    def advance(self, row: Logits, token: int) -> None:
        """A stretch goes on at i where x[i] is the new id and one ended at i - 1 before."""
        if self._length == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty_like(self._tokens)))
        before = self._tokens[: self._length]
        grown = np.zeros(self._length, dtype=np.int64)
        if token not in self._breakers:
            grown[1:] = self._matches
            grown += 1
            grown *= before == token
        self._tokens[self._length] = token
        self._length += 1
        self._matches = grown
        self._edit = self._make()

    def _make(self) -> Edit | None:
        lengths = self._matches
        if self._last_n >= 0:
            first = max(0, self._length - self._last_n)
            lengths = np.minimum(lengths, np.arange(1 - first, len(lengths) + 1 - first))
        places = np.flatnonzero(lengths >= self._allowed)
        longest: dict[int, int] = {}
        following = self._tokens[places + 1].tolist()
        for token, length in zip(following, lengths[places].tolist(), strict=True):
            if token not in self._breakers:
                longest[token] = max(length, longest.get(token, 0))
        if not longest:
            return None
        losses = [-self._penalty(length) for length in longest.values()]
        ids = np.array(list(longest), dtype=np.int64)
        return Edit(ADD, ids, np.array(losses, dtype=np.float32))

    def _penalty(self, length: int) -> float:
        penalty = self._multiplier
        for _ in range(length - self._allowed):
            if self._base == 1.0 or penalty >= LARGEST:
                break
            penalty *= self._base
        return min(penalty, LARGEST)


def match_lengths(tokens: list[int], breakers: frozenset[int]) -> Ids:
    """int64 [len - 1] (or [0]): at each place but the last, the length of the longest stretch that
    ends there and also ends `tokens`, without breakers: a Z-function of the reversed list."""
    size = len(tokens)
    if not size:
        return np.zeros(0, dtype=np.int64)
    backwards = tokens[::-1]
    most = next((n for n, token in enumerate(backwards) if token in breakers), size)
    found = [0] * size
    left = right = 0
    for place in range(1, size):
        length = min(right - place, found[place - left]) if place < right else 0
        while place + length < size and backwards[length] == backwards[place + length]:
            length += 1
        found[place] = length
        if place + length > right:
            left, right = place, place + length
    return np.minimum(np.array(found[:0:-1], dtype=np.int64), most)


def rules(request: Request) -> list[EditRule]:
    if not request.params.dry_multiplier:
        return []
    return [Dry(request.params, request.prompt_ids, request.dry_breakers)]
