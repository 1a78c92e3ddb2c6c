"""One pass as flat rows: which token, at which position, seeing which slots. Integers, no torch.

Every pass (prefill chunk, decode, chain, tree, a draft model's own pass) is a `Batch`. A segment is
one sequence's part of it: `cached` positions already in the KV store, then rows in topological
order; `parents[i]` is a row of the same segment, or -1 for a row that follows the last cached one.
A row sees the cached positions, its ancestors in the segment and itself; nothing else exists for
it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one sequence."""

    tokens: tuple[int, ...]  # [rows]
    parents: tuple[int, ...]  # [rows]
    cached: int  # positions whose K/V are in the store
    slots: np.ndarray  # int64 [cached + rows]: slot of each cached position, then of each row
    logit_rows: tuple[int, ...]  # rows of this segment whose logits are wanted
    adapter: str | None = None  # name of the adapter that all of its rows run under

    @staticmethod
    def chain(tokens: SequenceOf[int], slots: np.ndarray, logits: bool = True) -> Segment:
        """Certain tokens in a line (prefill chunk, plain decode); logits of the last if wanted."""
        rows = len(tokens)
        wanted = (rows - 1,) if logits else ()
        return Segment(tuple(tokens), tuple(range(-1, rows - 1)), len(slots) - rows, slots, wanted)

    def depths(self) -> list[int]:
        """[rows]: 0 for a row that follows the last cached position."""
        depths: list[int] = []
        for row, parent in enumerate(self.parents):
            assert parent < row, (row, parent)
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths


@dataclass(frozen=True, slots=True)
class Batch:
    """All segments of a pass, flattened in order."""

    segments: tuple[Segment, ...]
    token_ids: np.ndarray  # int64 [rows]
    positions: np.ndarray  # int64 [rows]: cached + depth, the content index
    slots: np.ndarray  # int64 [rows]: where each row's K and V are written
    logit_rows: np.ndarray  # int64: flat rows whose logits are wanted, in order

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def of(segments: SequenceOf[Segment]) -> Batch:
        tokens: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        for segment in segments:
            wanted += [len(tokens) + row for row in segment.logit_rows]
            tokens += segment.tokens
            positions += [segment.cached + depth for depth in segment.depths()]
        slots = [segment.slots[segment.cached :] for segment in segments]
        return Batch(
            tuple(segments),
            np.array(tokens, dtype=np.int64),
            np.array(positions, dtype=np.int64),
            np.concatenate(slots),
            np.array(wanted, dtype=np.int64),
        )
