"""What finished requests wrote, per salt: bounded, the oldest forgotten first.

An automaton cannot forget a text, so each salt has two: `reading` is asked, and once it is half
full every text goes to its successor as well, which takes over when `reading` is full. What is read
is therefore always the last limit / 2 tokens at least. Salts are bounded, too: the one used longest
ago goes. Knows no drafts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreword.draft._automaton import ROOT, SuffixAutomaton


class _Shelf:
    """The texts of one salt."""

    def __init__(self, new: Callable[[], Any]) -> None:
        self._new = new
        self.reading = new()
        self.successor = new()

    def add(self, text: list[int], limit: int) -> None:
        self.reading.grow(ROOT, text)
        if 2 * self.reading.num_tokens > limit:
            self.successor.grow(ROOT, text)
        if self.reading.num_tokens >= limit:
            self.reading, self.successor = self.successor, self._new()


class Archive:
    """Texts by salt: about `limit` tokens each (a text is never cut), `num_salts` salts. new: makes
    an automaton, a SuffixAutomaton or its like of the extension."""

    def __init__(
        self, limit: int, num_salts: int, new: Callable[[], Any] = SuffixAutomaton
    ) -> None:
        self._new = new
        self._limit = limit
        self._num_salts = num_salts
        self._shelves: dict[str, _Shelf] = {}  # the salt added to last is last

    def add(self, salt: str, text: list[int]) -> None:
        shelf = self._shelves.pop(salt, None) or _Shelf(self._new)
        self._shelves[salt] = shelf
        if len(self._shelves) > self._num_salts:
            del self._shelves[next(iter(self._shelves))]
        shelf.add(text, self._limit)

    def of(self, salt: str) -> Any | None:
        shelf = self._shelves.get(salt)
        return None if shelf is None else shelf.reading
