"""What the target would have said after a context, remembered for the contexts met last.

A context is the last one, two or three tokens, packed into one number. The row learned last wins;
asked for a history, the longest context that is known answers. Rows lie in a ring of fixed size, so
a new row takes the place of the oldest; memory is bounded by `capacity` rows, about 550 bytes each.
Knows no sequences and no trees.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

Keys = tuple[int, ...]  # of a context: its last token, its last two, its last three
Found = tuple[int, list[int], list[float]]  # tokens of the context, ids, their logits
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
    return (digit, *[key * base + digit for key in keys[: LONGEST - 1]])


class ContextTable:
    """Ring of `capacity` rows of `width` ids and logits."""

    def __init__(self, capacity: int, width: int) -> None:
        self._ids = np.zeros((capacity, width), dtype=np.int32)
        self._logits = np.zeros((capacity, width), dtype=np.float32)
        self._places: dict[int, int] = {}  # context -> row
        self._contexts: list[Keys] = [()] * capacity
        self._next = 0

    def learn(
        self,
        contexts: SequenceOf[Keys],
        ids: npt.NDArray[np.int32],
        logits: npt.NDArray[np.float32],
    ) -> None:
        """One row [width] for each context, best id first; of equal contexts the last wins."""
        places = self._places
        for row, keys in enumerate(contexts):
            place = self._next
            for key in self._contexts[place]:
                if places.get(key) == place:
                    del places[key]
            for key in keys:
                places[key] = place
            self._contexts[place] = keys
            self._ids[place] = ids[row]
            self._logits[place] = logits[row]
            self._next = (place + 1) % len(self._contexts)

    def find(self, keys: Keys) -> Found | None:
        """What is known about the longest context of `keys`."""
        for size in range(len(keys), 0, -1):
            place = self._places.get(keys[size - 1])
            if place is not None:
                return size, self._ids[place].tolist(), self._logits[place].tolist()
        return None
