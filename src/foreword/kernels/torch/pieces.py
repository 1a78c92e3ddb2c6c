"""Sorts the (row, partition) pairs of a pass into pieces of attention: integers, once per pass.

Knows lanes and slots, not what is computed with them (`attention.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True)
class _Place:
    partial: bool
    index: int  # piece * places + place, among its kind


def plan_pieces(batch: Batch, window: int | None, lanes: int, device: torch.device) -> Pieces:
    groups: dict[object, tuple[np.ndarray, list[tuple[int, int]]]] = {}
    loose: list[tuple[int, np.ndarray, np.ndarray]] = []  # row, slots, lanes it sees
    places: list[list[_Place | None]] = []  # per row, in ascending position
    for index, segment in enumerate(batch.segments):
        for path in _paths(segment):
            position, row = segment.cached + len(path) - 1, len(places)
            low = 0 if window is None else max(0, position - window + 1)
            mine: list[_Place | None] = []
            for part in range(low // lanes, position // lanes + 1):
                start, stop = part * lanes, (part + 1) * lanes
                slots = _lane_slots(segment, path, start, min(stop, position + 1))
                if low <= start and stop <= position + 1:
                    fresh = path[max(0, start - segment.cached) : max(0, stop - segment.cached)]
                    members = groups.setdefault((index, part, fresh), (slots, []))[1]
                    members.append((row, len(mine)))
                    mine.append(None)  # known when the groups are complete
                else:
                    seen = np.zeros(lanes, dtype=bool)
                    seen[max(low - start, 0) : len(slots)] = True
                    mine.append(_Place(True, len(loose)))
                    loose.append((row, _pad(slots, lanes), seen))
            places.append(mine)
    full = list(_full(list(groups.values()), places, device))
    partial = [
        _partial(number, loose[start : start + PARTIALS], lanes, device)
        for number, start in enumerate(range(0, len(loose), PARTIALS))
    ]
    num_full = sum(len(task.pieces) for task in full)
    base = num_full * QUERIES
    numbers = [[base * place.partial + place.index for place in mine if place] for mine in places]
    merge = tuple(_merge(numbers, base + len(partial) * PARTIALS, device))
    return Pieces(tuple(full), tuple(partial), num_full, len(partial), merge)


def _paths(segment: Segment) -> list[tuple[int, ...]]:
    """Per row: its ancestors within the segment in order, itself last."""
    paths: list[tuple[int, ...]] = []
    for row, parent in enumerate(segment.parents):
        paths.append((*paths[parent], row) if parent >= 0 else (row,))
    return paths


def _lane_slots(segment: Segment, path: tuple[int, ...], start: int, stop: int) -> np.ndarray:
    """Slots of content positions [start, stop) as the last row of `path` sees them."""
    cached = segment.slots[min(start, segment.cached) : min(stop, segment.cached)]
    fresh = path[max(0, start - segment.cached) : max(0, stop - segment.cached)]
    if not fresh:
        return cached
    rows = segment.cached + np.asarray(fresh, dtype=np.int64)
    return np.concatenate([cached, segment.slots[rows]])


def _pad(slots: np.ndarray, lanes: int) -> np.ndarray:
    padded = np.zeros(lanes, dtype=np.int64)  # slot 0: zeros
    padded[: len(slots)] = slots
    return padded


def _full(
    groups: list[tuple[np.ndarray, list[tuple[int, int]]]],
    places: list[list[_Place | None]],
    device: torch.device,
) -> Iterator[FullTask]:
    """Cut each group of (row, step) members into pieces; note where each member's entry is."""
    piece = 0
    for slots, members in groups:
        lanes = torch.from_numpy(np.ascontiguousarray(slots)).to(device)
        chunks = [members[at : at + QUERIES] for at in range(0, len(members), QUERIES)]
        for first in range(0, len(chunks), SHARED):
            rows, numbers = [], []
            for chunk in chunks[first : first + SHARED]:
                for place, (row, step) in enumerate(chunk):
                    places[row][step] = _Place(False, piece * QUERIES + place)
                padded = [row for row, _ in chunk] + [chunk[-1][0]] * (QUERIES - len(chunk))
                rows.append(torch.from_numpy(np.asarray(padded, dtype=np.int64)).to(device))
                numbers.append(piece)
                piece += 1
            yield FullTask(tuple(numbers), lanes, tuple(rows))


def _partial(
    number: int,
    chosen: list[tuple[int, np.ndarray, np.ndarray]],
    lanes: int,
    device: torch.device,
) -> PartialTask:
    hidden = np.zeros((PARTIALS, 1, 1, lanes), dtype=bool)
    slots = []
    for place, (_, row_slots, seen) in enumerate(chosen):
        hidden[place] = ~seen
        slots.append(torch.from_numpy(np.where(seen, row_slots, 0)).to(device))
    rows = tuple(row for row, _, _ in chosen)
    return PartialTask(number, rows, tuple(slots), torch.from_numpy(hidden).to(device))


def _merge(entries: list[list[int]], absent: int, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, len(entries), TILE):
        tile = entries[start : start + TILE]
        index = np.full((max(len(mine) for mine in tile), TILE), absent, dtype=np.int64)
        index[0, len(tile) :] = absent + 1
        for row, mine in enumerate(tile):
            index[: len(mine), row] = mine
        yield torch.from_numpy(index).to(device)
