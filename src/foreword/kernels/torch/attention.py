"""Ragged tree attention out of fixed-shape pieces: partitions of keys at absolute positions.

Of the partitions a row sees, those it sees whole are *full* and the others (the last, and the first
under a sliding window) *partial*; which is which depends on the row's own position and window
alone.

- full:    QUERIES rows that share one partition's slots at a time, one product per KV head.
- partial: PARTIALS rows at a time, each with its own copy of the lanes; a lane the row does not see
           points at the null slot, so its operands are zeros whatever else the pool holds.

Each piece gives (maximum, sum of exponentials, weighted values) per row and head; a row merges its
pieces in ascending position. Both kinds of piece have one shape in every pass, so neither the rows
beside it nor their number can reach a row's bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foreword.kernels.torch.linear import TILE
from foreword.kernels.torch.workers import Workers
from foreword.model.batch import Batch, Segment

QUERIES = 8  # rows in a full piece
PARTIALS = 4  # rows in a partial piece


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one pass computes under one window; entry e is a (row, partition) pair."""

    full: tuple[tuple[Tensor, Tensor, Tensor], ...]  # rows [QUERIES], slots [lanes], entries
    partial: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]  # rows, slots, mask, entries
    merge: tuple[tuple[Tensor, Tensor], ...]  # step k: entry of each row [rows], has one [rows]
    num_entries: int


def plan_pieces(batch: Batch, window: int | None, lanes: int, device: torch.device) -> Pieces:
    """Sort every (row, partition) pair of a pass into pieces. Integers only, once per pass."""
    groups: dict[object, tuple[np.ndarray, list[tuple[int, int]]]] = {}
    loose: list[tuple[int, int, np.ndarray, np.ndarray]] = []
    entries: list[list[int]] = []  # per row: its entries in ascending position
    count, row = 0, 0
    for index, segment in enumerate(batch.segments):
        for path in _paths(segment):
            position = segment.cached + len(path) - 1
            low = 0 if window is None else max(0, position - window + 1)
            mine = []
            for part in range(low // lanes, position // lanes + 1):
                start, stop = part * lanes, (part + 1) * lanes
                slots = _lane_slots(segment, path, start, min(stop, position + 1))
                if low <= start and stop <= position + 1:
                    fresh = path[max(0, start - segment.cached) : max(0, stop - segment.cached)]
                    key = (index, part, tuple(fresh))
                    groups.setdefault(key, (slots, []))[1].append((row, count))
                else:
                    seen = np.zeros(lanes, dtype=bool)
                    seen[max(low - start, 0) : len(slots)] = True
                    loose.append((row, count, _pad(slots, lanes), seen))
                mine.append(count)
                count += 1
            entries.append(mine)
            row += 1
    return Pieces(
        tuple(_full(groups, device)),
        tuple(_partial(loose, lanes, device)),
        tuple(_merge(entries, count, device)),
        count,
    )


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


def _full(groups: dict[Any, Any], device: torch.device) -> Iterator[Any]:
    for slots, members in groups.values():
        lanes = torch.from_numpy(np.ascontiguousarray(slots)).to(device)
        for start in range(0, len(members), QUERIES):
            chosen = members[start : start + QUERIES]
            rows = [row for row, _ in chosen] + [-1] * (QUERIES - len(chosen))
            yield torch.tensor(rows, device=device), lanes, _index(chosen, device)


def _partial(loose: list[Any], lanes: int, device: torch.device) -> Iterator[Any]:
    for start in range(0, len(loose), PARTIALS):
        chosen = loose[start : start + PARTIALS]
        rows = np.full(PARTIALS, -1, dtype=np.int64)
        slots = np.zeros((PARTIALS, lanes), dtype=np.int64)
        mask = np.zeros((PARTIALS, lanes), dtype=bool)
        mask[:, 0] = True  # an unused place attends to the null slot: finite, and dropped
        for place, (row, _, row_slots, seen) in enumerate(chosen):
            rows[place], slots[place], mask[place] = row, np.where(seen, row_slots, 0), seen
        tensors = (torch.from_numpy(array).to(device) for array in (rows, slots, mask))
        yield (*tensors, _index(chosen, device))


def _index(chosen: list[Any], device: torch.device) -> Tensor:
    return torch.tensor([member[1] for member in chosen], device=device)


def _merge(entries: list[list[int]], dummy: int, device: torch.device) -> Iterator[Any]:
    rows = -(-len(entries) // TILE) * TILE
    for step in range(max(len(mine) for mine in entries)):
        index = np.full(rows, dummy, dtype=np.int64)
        for row, mine in enumerate(entries):
            if step < len(mine):
                index[row] = mine[step]
        tensor = torch.from_numpy(index).to(device)
        yield tensor, tensor != dummy


def attend(query: Tensor, keys: Tensor, values: Tensor, pieces: Pieces, workers: Workers) -> Tensor:
    """query float32 [rows (padded to TILE), heads, dim]; keys, values [slots, kv_heads, dim].

    Returns float32 [rows, heads, dim]. The scale is applied to the scores.
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    state = Partials.empty(pieces.num_entries + 1, heads, dim, query.device)  # last: the dummy

    def full(piece: tuple[Tensor, Tensor, Tensor]) -> None:
        members, lanes, entries = piece
        shape = (QUERIES, kv_heads, heads // kv_heads, dim)
        q = query[members].view(shape).permute(1, 0, 2, 3).reshape(kv_heads, -1, dim)
        k = keys[lanes].float().permute(1, 2, 0)
        v = values[lanes].float().permute(1, 0, 2)
        state.put(entries, _softmax_piece(q, k, v, None), (kv_heads, QUERIES), by_head=True)

    def partial(piece: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        members, lanes, mask, entries = piece
        q = query[members].view(PARTIALS * kv_heads, heads // kv_heads, dim)
        k = keys[lanes].float().permute(0, 2, 3, 1).reshape(PARTIALS * kv_heads, dim, -1)
        v = values[lanes].float().permute(0, 2, 1, 3).reshape(PARTIALS * kv_heads, -1, dim)
        seen = mask.repeat_interleave(kv_heads, 0)[:, None, :]
        state.put(entries, _softmax_piece(q, k, v, seen), (PARTIALS, kv_heads), by_head=False)

    workers.each(full, pieces.full)
    workers.each(partial, pieces.partial)
    return state.merged(pieces.merge, rows)


def _softmax_piece(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.bmm(q, k).mul_(q.shape[-1] ** -0.5)
    if seen is not None:
        scores.masked_fill_(~seen, float("-inf"))
    top = scores.amax(-1)
    weights = scores.sub_(top[..., None]).exp_()
    return top, weights.sum(-1), torch.bmm(weights, v)


@dataclass(frozen=True, slots=True)
class Partials:
    """(maximum, sum, weighted values) of every entry, and their merge."""

    top: Tensor  # [entries, heads]
    total: Tensor  # [entries, heads]
    value: Tensor  # [entries, heads, dim]

    @staticmethod
    def empty(entries: int, heads: int, dim: int, device: torch.device) -> Partials:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=device)

        return Partials(zeros(entries, heads), zeros(entries, heads), zeros(entries, heads, dim))

    def put(
        self,
        entries: Tensor,
        piece: tuple[Tensor, Tensor, Tensor],
        shape: tuple[int, int],
        by_head: bool,
    ) -> None:
        """Scatter a piece: its rows come KV head first (`by_head`) or row first."""
        for target, part in zip((self.top, self.total, self.value), piece, strict=True):
            tail = target.shape[2:]
            split = part.reshape(*shape, -1, *tail)
            if by_head:
                split = split.transpose(0, 1)
            target[entries] = split.reshape(-1, *target.shape[1:])[: len(entries)]

    def merged(self, steps: tuple[tuple[Tensor, Tensor], ...], rows: int) -> Tensor:
        """Ascending merge, tile by tile of rows; a row without a k-th entry stays untouched."""
        out = torch.empty(
            (rows, *self.value.shape[1:]), dtype=torch.float32, device=self.top.device
        )
        for start in range(0, rows, TILE):
            tile = slice(start, start + TILE)
            first, _ = steps[0]
            top, total, value = (part[first[tile]] for part in (self.top, self.total, self.value))
            for index, active in steps[1:]:
                mine, has = index[tile], active[tile]
                if not bool(has.any()):
                    continue
                higher = torch.maximum(top, self.top[mine])
                old, new = (top - higher).exp(), (self.top[mine] - higher).exp()
                has = has[:, None]
                total = torch.where(has, total * old + self.total[mine] * new, total)
                blend = value * old[..., None] + self.value[mine] * new[..., None]
                value = torch.where(has[..., None], blend, value)
                top = torch.where(has, higher, top)
            out[tile] = value / torch.where(total == 0, torch.ones_like(total), total)[..., None]
        return out
