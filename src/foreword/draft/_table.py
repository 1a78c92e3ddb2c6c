"""What the target would have said after a context, remembered for the contexts met last.

A context is the last one, two or three tokens, packed into one number. The row learned last wins;
asked for a history, the longest context that is known answers. Rows lie in a ring of fixed size, so
a new row takes the place of the oldest; memory is bounded by `capacity` rows, about 1 kB each.
Knows no sequences and no trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf

Keys = tuple[int, ...]  # of a context: its last token, its last two, its last three
Row = tuple[list[int], list[float]]  # ids, best first, and their shares
LONGEST = 3  # tokens of a context at most


def keys_of(tokens: SequenceOf[int], base: int) -> Keys:
    """Of the last tokens of a history, each below `base` - 1; empty for no tokens."""
    keys: Keys = ()
    for token in tokens[-LONGEST:]:
        keys = follow(keys, token, base)
    return keys


def follow(keys: Keys, token: int, base: int) -> Keys:
    """The keys of the context that `token` makes of another. Digits are tokens + 1, so that no two
    contexts share a number, whatever their lengths."""
    digit = token + 1
    if len(keys) > 1:
        return (digit, keys[0] * base + digit, keys[1] * base + digit)
    return (digit, keys[0] * base + digit) if keys else (digit,)


class ContextTable:
    """Ring of `capacity` rows."""

    def __init__(self, capacity: int) -> None:
        self._rows: list[Row] = [([], [])] * capacity
        self._places: dict[int, int] = {}  # context -> row
        self._contexts: list[Keys] = [()] * capacity
        self._next = 0

    def learn(self, contexts: Iterable[Keys], rows: Iterable[Row]) -> None:
        """One row for each context; of equal contexts the last wins."""
        places = self._places
        for keys, row in zip(contexts, rows, strict=True):
            place = self._next
            for key in self._contexts[place]:
                if places.get(key) == place:
                    del places[key]
            for key in keys:
                places[key] = place
            self._contexts[place] = keys
            self._rows[place] = row
            self._next = (place + 1) % len(self._contexts)

    def find(self, keys: Keys) -> tuple[int, Row] | None:
        """Of the longest context of `keys` that is known: its tokens, and what came after it."""
        for size in range(len(keys), 0, -1):
            place = self._places.get(keys[size - 1])
            if place is not None:
                return size, self._rows[place]
        return None
