"""Parts of the target read ahead of its own pass, in the slots that pass will write anyway.

A drafter that runs layers of the target needs keys and values of the history in those layers. The
target's own store has them, true ones, so nothing is kept twice and nothing has to be caught up:

    store     [ committed: read only | reserved for this step: scratch until the pass ]

The engine reserves rows for a step before it asks for drafts. `Ahead` writes to reserved rows
alone, and the target's pass writes each row that it reads before it reads it, in all layers: what
was left there cannot reach a token. Only between the plan of a step and its pass; what is read is
gone in the next step. Knows no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from foreword.model.batch import Batch, Segment
from foreword.protocols import KVStore, Logits, PartialModel
from foreword.types import Sequence


@dataclass(frozen=True, slots=True)
class Line:
    """Tokens of one sequence in a row, read at positions `start`, `start` + 1, ...: what is before
    them comes from the committed positions and, at `start` beyond these, from the reserved rows
    already read. `wanted`: logits of so many at the end."""

    sequence: Sequence
    start: int
    tokens: SequenceOf[int]
    wanted: int = 1


class Ahead:
    """The target's model and store, for reading and for scratch."""

    def __init__(self, model: PartialModel, kv: KVStore) -> None:
        self._model = model
        self._kv = kv

    @property
    def num_units(self) -> int:
        """Two for each layer, see protocols.PartialModel."""
        return 2 * self._model.num_layers

    def held(self, sequence: Sequence) -> int:
        """Positions whose K and V are known."""
        return self._kv.length(sequence.id)

    def room(self, sequence: Sequence) -> int:
        """Rows of scratch."""
        return len(self._kv.slots(sequence.id)) - self._kv.length(sequence.id)

    def read(self, lines: SequenceOf[Line], skip: Set[int]) -> Logits:
        """One pass without the units in `skip`: float32 [sum of wanted, vocab]."""
        return self._model.forward(
            Batch.of([self._segment(line) for line in lines]), self._kv, skip
        )

    def _segment(self, line: Line) -> Segment:
        slots, held = self._kv.slots(line.sequence.id), self.held(line.sequence)
        first, count = max(line.start, held), len(line.tokens)
        assert held <= first <= first + count <= len(slots), (held, first, count, len(slots))
        places = np.concatenate((slots[: line.start], slots[first : first + count]))
        parents = tuple(range(-1, count - 1))
        wanted = tuple(range(count - line.wanted, count))
        adapter = line.sequence.request.adapter
        return Segment(tuple(line.tokens), parents, line.start, places, wanted, adapter)
