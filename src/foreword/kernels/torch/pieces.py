"""Sorts the (row, partition) pairs of a pass into pieces of attention: integers, once per pass.

Knows lanes and slots, not what is computed with them (`attention.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foreword.kernels.torch.linear import TILE
from foreword.model.batch import Batch, Segment

QUERIES = 8  # rows in a full piece
PARTIALS = 4  # rows in a partial piece
SHARED = 4  # full pieces that read their lanes together, in one task


@dataclass(frozen=True, slots=True)
class FullTask:
    """Some pieces of one partition; an unused place repeats the last row and is dropped."""

    pieces: tuple[int, ...]
    lanes: Tensor  # slots [lanes]
    members: tuple[Tensor, ...]  # per piece: rows [QUERIES]


@dataclass(frozen=True, slots=True)
class PartialTask:
    """One piece: up to PARTIALS rows, each with lanes of its own."""

    piece: int
    rows: tuple[int, ...]
    lanes: tuple[Tensor, ...]  # per row: slots [lanes], 0 where the row sees nothing
    hidden: Tensor  # bool [PARTIALS, 1, 1, lanes]: lanes a row does not see


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one pass computes under one window.

    Entry piece * QUERIES + place is a full piece's; those of partial pieces follow in the same way;
    then ABSENT, a step that a row does not have, and BLANK, the only entry of a padding row.
    """

    full: tuple[FullTask, ...]
    partial: tuple[PartialTask, ...]
    num_full: int  # pieces
    num_partial: int
    merge: tuple[Tensor, ...]  # per tile of rows: entries [steps, TILE], in ascending position


@dataclass(frozen=True, slots=True, eq=False)
class _Whole:
    """A partition and the one path that fills it; the rows that see it whole share its pieces."""

    part: int
    slots: np.ndarray  # int64 [lanes]


@dataclass(frozen=True, slots=True)
class _Trail:
    """Slots of what a row sees when no window hides it, in ascending position.

    A row shares the whole partitions of its parent: nothing here grows with a chain's length but
    `wholes`, by one in `lanes` rows.
    """

    wholes: tuple[_Whole, ...]
    rest: tuple[int, ...]  # the slots of the last partition, fewer than `lanes`

    def then(self, slot: int, lanes: int) -> _Trail:
        rest = (*self.rest, slot)
        if len(rest) < lanes:
            return _Trail(self.wholes, rest)
        whole = _Whole(len(self.wholes), np.asarray(rest, dtype=np.int64))
        return _Trail((*self.wholes, whole), ())


@dataclass(frozen=True, slots=True)
class _Loose:
    """A row that sees the lanes [start, stop) of a partition."""

    row: int
    part: int
    start: int
    slots: SequenceOf[int] | np.ndarray  # [stop]

    def padded(self, lanes: int) -> np.ndarray:
        """int64 [lanes]: slot 0, which holds zeros, where the row sees nothing."""
        padded = np.zeros(lanes, dtype=np.int64)
        padded[self.start : len(self.slots)] = self.slots[self.start :]
        return padded

    def hidden(self, lanes: int) -> np.ndarray:
        hidden = np.ones(lanes, dtype=bool)
        hidden[self.start : len(self.slots)] = False
        return hidden


def plan_pieces(batch: Batch, window: int | None, lanes: int, device: torch.device) -> Pieces:
    positions = batch.positions
    lows = np.zeros_like(positions) if window is None else np.maximum(0, positions + 1 - window)
    trails = [trail for segment in batch.segments for trail in _trails(segment, lanes)]
    wholes, loose = _sort(trails, lows.tolist(), lanes)
    full = list(_full(wholes, device))
    partial = [
        _partial(number, loose[start : start + PARTIALS], lanes, device)
        for number, start in enumerate(range(0, len(loose), PARTIALS))
    ]
    num_full = sum(len(task.pieces) for task in full)

    first = lows // lanes
    steps = np.array([len(trail.wholes) + bool(trail.rest) for trail in trails]) - first
    base = num_full * QUERIES
    absent = base + len(partial) * PARTIALS
    table = np.full((steps.max(), -(-len(steps) // TILE) * TILE), absent, dtype=np.int64)
    table[0, len(steps) :] = absent + 1
    piece = 0
    for whole, rows in wholes:
        table[whole.part - first[rows], rows] = piece * QUERIES + np.arange(len(rows))
        piece += -(-len(rows) // QUERIES)
    for number, one in enumerate(loose):
        table[one.part - first[one.row], one.row] = base + number
    merge = tuple(_merge(table, steps, device))
    return Pieces(tuple(full), tuple(partial), num_full, len(partial), merge)


def _trails(segment: Segment, lanes: int) -> list[_Trail]:
    """One per row."""
    cached, own = segment.slots[: segment.cached], segment.slots[segment.cached :].tolist()
    edge = segment.cached // lanes * lanes
    wholes = [
        _Whole(part, cached[start : start + lanes])
        for part, start in enumerate(range(0, edge, lanes))
    ]
    root = _Trail(tuple(wholes), tuple(cached[edge:].tolist()))
    trails: list[_Trail] = []
    for parent, slot in zip(segment.parents, own, strict=True):
        trails.append((trails[parent] if parent >= 0 else root).then(slot, lanes))
    return trails


def _sort(
    trails: SequenceOf[_Trail], lows: SequenceOf[int], lanes: int
) -> tuple[list[tuple[_Whole, np.ndarray]], list[_Loose]]:
    """Who sees which partition whole (rows ascending), and all else; in order of (row, part).

    Row i sees the positions from `lows[i]` on.
    """
    alike: dict[tuple[_Whole, int], tuple[_Trail, list[int]]] = {}  # rows with the same wholes
    loose: list[_Loose] = []
    for row, (trail, low) in enumerate(zip(trails, lows, strict=True)):
        part, start = divmod(low, lanes)
        head, last = part + (start > 0), len(trail.wholes)
        if head < last:
            alike.setdefault((trail.wholes[-1], head), (trail, []))[1].append(row)
        if part < min(head, last):
            loose.append(_Loose(row, part, start, trail.wholes[part].slots))
        if trail.rest:
            loose.append(_Loose(row, last, start if part == last else 0, trail.rest))
    members: dict[_Whole, list[np.ndarray]] = {}
    for (_, head), (trail, rows) in alike.items():
        together = np.asarray(rows, dtype=np.int64)
        for whole in trail.wholes[head:]:
            members.setdefault(whole, []).append(together)
    wholes = [(whole, np.sort(np.concatenate(parts))) for whole, parts in members.items()]
    return sorted(wholes, key=lambda pair: (pair[1][0], pair[0].part)), loose


def _full(wholes: list[tuple[_Whole, np.ndarray]], device: torch.device) -> Iterator[FullTask]:
    """Cut the rows of each partition into pieces."""
    piece = 0
    for whole, rows in wholes:
        lanes = torch.from_numpy(np.ascontiguousarray(whole.slots)).to(device)
        count = -(-len(rows) // QUERIES)
        padded = np.full(count * QUERIES, rows[-1])
        padded[: len(rows)] = rows
        chunks = torch.from_numpy(padded).to(device).view(count, QUERIES).unbind()
        for first in range(0, count, SHARED):
            last = min(first + SHARED, count)
            yield FullTask(tuple(range(piece + first, piece + last)), lanes, chunks[first:last])
        piece += count


def _partial(
    number: int, chosen: SequenceOf[_Loose], lanes: int, device: torch.device
) -> PartialTask:
    hidden = np.zeros((PARTIALS, 1, 1, lanes), dtype=bool)
    for place, one in enumerate(chosen):
        hidden[place] = one.hidden(lanes)
    slots = tuple(torch.from_numpy(one.padded(lanes)).to(device) for one in chosen)
    rows = tuple(one.row for one in chosen)
    return PartialTask(number, rows, slots, torch.from_numpy(hidden).to(device))


def _merge(table: np.ndarray, steps: np.ndarray, device: torch.device) -> Iterator[Tensor]:
    """Cut entries [steps, rows] into tiles of rows, each as deep as its deepest row."""
    for start in range(0, len(steps), TILE):
        deepest = steps[start : start + TILE].max()
        tile = np.ascontiguousarray(table[:deepest, start : start + TILE])
        yield torch.from_numpy(tile).to(device)
