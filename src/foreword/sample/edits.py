"""Changes of a logit row that a request's parameters ask for, as data: id lists and numbers.

A rule of this room says what it changes as one `Edit`; `edit_row` is what that means, and the
compiled chain does the same to its own copy. Everything is float32, one operation per id, so the
order of edits is the only order there is. Knows no parameters.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foreword.protocols import ADD, MASK, ONLY, REPEAT, Edit, Logits
from foreword.sample.filters import Row
from foreword.sample.portable import Ids


class EditRule:
    """A protocols.Rule whose change is an Edit."""

    def edit(self, position: int) -> Edit | None:
        """What changes before the token at output position `position` is chosen; None: nothing."""
        raise NotImplementedError

    def advance(self, row: Logits, token: int) -> None:
        """Most rules have no state."""

    def apply(self, row: Logits, position: int) -> None:
        edit = self.edit(position)
        if edit is not None:
            edit_row(row, edit)


def edit_row(row: Row, edit: Edit) -> None:
    """In place, float32 [vocab]; ids outside the row are nobody's. Overflow gives infinities, which
    the sampler refuses."""
    kind, ids, values, factor = edit
    if (ids >= len(row)).any():
        inside = ids < len(row)
        ids, values = ids[inside], None if values is None else values[inside]
    with np.errstate(over="ignore", under="ignore"):
        if kind == ADD:
            assert values is not None
            row[ids] += values
        elif kind == REPEAT:
            old, penalty = row[ids], np.float32(factor)
            row[ids] = np.where(old > 0, old / penalty, old * penalty)
        elif kind == MASK:
            row[ids] = -np.inf
        else:
            assert kind == ONLY, kind
            kept = row[ids]
            row.fill(-np.inf)
            row[ids] = kept


def as_ids(tokens: Iterable[int]) -> Ids:
    """Distinct ids, ascending, as an Edit wants them."""
    return np.array(sorted(set(tokens)), dtype=np.int64)


class Growing:
    """Distinct ids in order of arrival, each with a float32 value; `ids` and `values` are views."""

    def __init__(self) -> None:
        self._ids = np.empty(64, dtype=np.int64)
        self._values = np.zeros(64, dtype=np.float32)
        self._places: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def place(self, token: int) -> int:
        """Where `token` is; it is added where it is new."""
        found = self._places.setdefault(token, len(self._places))
        if found == len(self._ids):
            self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
            self._values = np.concatenate((self._values, np.zeros_like(self._values)))
        self._ids[found] = token
        return found

    def set(self, token: int, value: float) -> None:
        place = self.place(token)  # first: it may replace the arrays
        self._values[place] = value

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._places)]

    @property
    def values(self) -> Row:
        return self._values[: len(self._places)]
