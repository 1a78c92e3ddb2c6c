"""The naive store, the oracle of the family: one contiguous run of slots per sequence.

    slots   0 | A A A A r r | . . | B B B r | . . .        A, B committed; r reserved; . free

A sequence that outgrows its gap is moved to the first gap that is long enough, so free room may be
unusable until a neighbour leaves; alone, a sequence can use every slot but the null one. It never
reuses a prefix, whatever `enable_prefix_caching` allows: sharing may save work, never change bits.
Knows slots only: the pool may be any object with `num_slots`, `move` and `check`.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(slots=True)
class _Run:
    """Slots [start, start + length + reserved)."""

    start: int = 1
    length: int = 0
    reserved: int = 0

    @property
    def end(self) -> int:
        return self.start + self.length + self.reserved


def make(
    pool: Any, *, block_size: int = 16, identity: str = "", enable_prefix_caching: bool = True
) -> DenseStore:
    """A store over `pool`. It has no pages and no prefixes: only the pool matters to it."""
    return DenseStore(pool)


class DenseStore:
    """KVStore without pages."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.block_size = 1
        self.shares_prefixes = False
        self.capacity: int = pool.num_slots - 1
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._runs: dict[str, _Run] = {}

    @property
    def num_free_tokens(self) -> int:
        return self.capacity - sum(run.length + run.reserved for run in self._runs.values())

    @property
    def usage(self) -> float:
        """Share of the slots held by sequences, in [0, 1]."""
        return 1.0 - self.num_free_tokens / self.capacity

    def begin(self, sequence_id: str, token_ids: SequenceOf[int], salt: str = "") -> int:
        assert sequence_id not in self._runs, f"{sequence_id} has begun already"
        self._runs[sequence_id] = _Run()
        return 0

    def reserve(self, sequence_id: str, rows: int) -> bool:
        """False leaves everything, the last reservation included, as it was."""
        run = self._runs[sequence_id]
        start = self._place(run, run.length + rows)
        if start is None:
            return False
        if start != run.start:
            offsets = np.arange(run.length, dtype=np.int64)
            self.pool.move(run.start + offsets, start + offsets)
        run.start, run.reserved = start, rows
        return True

    def _place(self, run: _Run, size: int) -> int | None:
        """Where `size` slots fit, as if `run` had left: its own start, else the first such gap."""
        others = sorted(
            (other.start, other.end)
            for other in self._runs.values()
            if other is not run and other.end > other.start
        )
        gaps, start = [], 1
        for begin, end in (*others, (self.pool.num_slots, 0)):
            gaps.append((start, begin))
            start = end
        if any(begin <= run.start and run.start + size <= end for begin, end in gaps):
            return run.start
        return next((begin for begin, end in gaps if begin + size <= end), None)

    def slots(self, sequence_id: str) -> np.ndarray:
        """int64 [committed + reserved]."""
        run = self._runs[sequence_id]
        return np.arange(run.start, run.end, dtype=np.int64)

    def commit(self, sequence_id: str, path: SequenceOf[int], token_ids: SequenceOf[int]) -> None:
        run = self._runs[sequence_id]
        rows = np.asarray(path, dtype=np.int64)
        assert (np.diff(rows) > 0).all(), f"the path must ascend: {rows}"
        assert ((rows >= 0) & (rows < run.reserved)).all(), f"{rows} leaves {run.reserved} rows"
        first = run.start + run.length
        self.pool.move(first + rows, first + np.arange(len(rows), dtype=np.int64))
        run.length += len(rows)
        run.reserved = 0
        assert len(token_ids) == run.length, (len(token_ids), run.length)

    def length(self, sequence_id: str) -> int:
        return self._runs[sequence_id].length

    def truncate(self, sequence_id: str, length: int) -> None:
        """Drops the reservation too."""
        run = self._runs[sequence_id]
        assert 0 <= length <= run.length, (length, run.length)
        run.length, run.reserved = length, 0

    def free(self, sequence_id: str) -> None:
        self._runs.pop(sequence_id, None)

    def keep(self, sequence_id: str, token_ids: SequenceOf[int]) -> None:
        """As `free`: nothing is ever found again."""
        self.free(sequence_id)

    def check(self) -> None:
        owner: dict[int, str] = {}
        for name, run in self._runs.items():
            for slot in range(run.start, run.end):
                assert 0 < slot < self.pool.num_slots, f"slot {slot} of {name} is outside the pool"
                assert slot not in owner, f"slot {slot} belongs to {owner[slot]} and {name}"
                owner[slot] = name
        assert len(owner) + self.num_free_tokens == self.capacity, "slot 0: held + free != total"
        self.pool.check()
