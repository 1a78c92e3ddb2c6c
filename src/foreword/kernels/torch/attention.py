"""Ragged tree attention out of fixed-shape pieces: partitions of keys at absolute positions.

Of the partitions a row sees, those it sees whole are *full* and the others (the last, and the
first under a sliding window) *partial*; which is which depends on the row's own position and
window alone.

- full:    QUERIES rows that share one partition's slots at a time, one product per KV head.
- partial: each row with its own copy of the lanes; a lane the row does not see points at the null
           slot, so its operands are zeros whatever else the pool holds. PARTIALS rows share the ops
           between the products.

Each (row, partition) pair is an *entry* of three numbers per head: maximum, sum of exponentials,
weighted values. A row merges its entries in ascending position. Products and exponentials have
one shape in every pass, so neither the rows beside it nor their number can reach a row's bits; what
runs at other shapes is exact in any shape: copies, maxima, single additions and multiplications.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.kernels._kv import widened
from foreword.kernels.torch.linear import TILE
from foreword.kernels.torch.pieces import PARTIALS, QUERIES, FullTask, PartialTask, Pieces
from foreword.kernels.torch.workers import Workers


def attend(query: Tensor, keys: Tensor, values: Tensor, pieces: Pieces, workers: Workers) -> Tensor:
    """query float32 [rows (padded to TILE), heads, dim]; keys, values [slots, kv_heads, dim], or a
    pool's rows in int8.

    Returns float32 [rows, heads, dim]. The scale is applied to the scores.
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[1]
    shape = (kv_heads, heads // kv_heads)
    full = Entries.empty((pieces.num_full, kv_heads, QUERIES, shape[1]), dim, query.device)
    loose = Entries.empty((pieces.num_partial, PARTIALS, *shape), dim, query.device)

    def run_full(task: FullTask) -> None:
        k = widened(keys.index_select(0, task.lanes), dim).permute(1, 2, 0)
        v = widened(values.index_select(0, task.lanes), dim).permute(1, 0, 2)
        for piece, members in zip(task.pieces, task.members, strict=True):
            q = query.index_select(0, members).view(QUERIES, *shape, dim).permute(1, 0, 2, 3)
            scores = torch.bmm(q.reshape(kv_heads, -1, dim), k).mul_(dim**-0.5)
            weights = full.weigh(piece, scores.view(kv_heads, QUERIES, shape[1], -1))
            out = full.value[piece].view(kv_heads, -1, dim)
            torch.bmm(weights.view(kv_heads, out.shape[1], -1), v, out=out)

    def run_partial(task: PartialTask) -> None:
        scores = query.new_zeros(PARTIALS, *shape, task.hidden.shape[-1])
        for place, (row, lanes) in enumerate(zip(task.rows, task.lanes, strict=True)):
            k = widened(keys.index_select(0, lanes), dim).permute(1, 2, 0)
            torch.bmm(query[row].view(*shape, dim), k, out=scores[place])
        scores.mul_(dim**-0.5).masked_fill_(task.hidden, float("-inf"))
        weights = loose.weigh(task.piece, scores)
        for place, lanes in enumerate(task.lanes):
            v = widened(values.index_select(0, lanes), dim).permute(1, 0, 2)
            torch.bmm(weights[place], v, out=loose.value[task.piece, place])

    workers.each(run_full, pieces.full)
    workers.each(run_partial, pieces.partial)
    entries = Entries.joined(full.by_row(heads), loose.flat(heads))
    out = torch.empty((rows, heads, dim), dtype=torch.float32, device=query.device)

    def merge(tile: int) -> None:
        out[tile * TILE : (tile + 1) * TILE] = entries.merged(pieces.merge[tile])

    workers.each(merge, range(len(pieces.merge)))
    return out


@dataclass(frozen=True, slots=True)
class Entries:
    """What is known of (row, partition) pairs, per head."""

    top: Tensor  # [..., heads]: maximum of the scores
    total: Tensor  # [..., heads]: sum of exp(score - top)
    value: Tensor  # [..., heads, dim]: sum of exp(score - top) * value

    @staticmethod
    def empty(shape: tuple[int, ...], dim: int, device: torch.device) -> Entries:
        def zeros(*sizes: int) -> Tensor:
            return torch.zeros(sizes, dtype=torch.float32, device=device)

        return Entries(zeros(*shape), zeros(*shape), zeros(*shape, dim))

    def weigh(self, piece: int, scores: Tensor) -> Tensor:
        """Turn scores [..., lanes] into exponentials in place; note their maximum and sum."""
        top, total = self.top[piece], self.total[piece]
        torch.amax(scores, -1, out=top)
        scores.sub_(top[..., None]).exp_()
        torch.sum(scores, -1, out=total)
        return scores

    def by_row(self, heads: int) -> Entries:
        """[pieces, kv_heads, QUERIES, group] -> [pieces * QUERIES, heads]."""
        return Entries(
            self.top.transpose(1, 2).reshape(-1, heads),
            self.total.transpose(1, 2).reshape(-1, heads),
            self.value.transpose(1, 2).reshape(-1, heads, self.value.shape[-1]),
        )

    def flat(self, heads: int) -> Entries:
        return Entries(
            self.top.view(-1, heads),
            self.total.view(-1, heads),
            self.value.view(-1, heads, self.value.shape[-1]),
        )

    @staticmethod
    def joined(full: Entries, loose: Entries) -> Entries:
        """All entries, then ABSENT (adds nothing) and BLANK (the entry of a padding row)."""
        extra = Entries.empty((2, full.top.shape[1]), full.value.shape[-1], full.top.device)
        extra.top[0] = float("-inf")
        extra.total[1] = 1.0
        return Entries(
            torch.cat([full.top, loose.top, extra.top]),
            torch.cat([full.total, loose.total, extra.total]),
            torch.cat([full.value, loose.value, extra.value]),
        )

    def merged(self, index: Tensor) -> Tensor:
        """float32 [TILE, heads, dim] of entries [steps, TILE], ascending; absent ones add +0.0."""
        steps, flat = index.shape[0], index.view(-1)
        tops, totals = (part.index_select(0, flat) for part in (self.top, self.total))
        values = self.value.index_select(0, flat).view(steps, TILE, *self.value.shape[1:])
        weights = tops.view(steps, TILE, -1)
        weights.sub_(weights.amax(0))
        for step in range(steps):
            weights[step].exp_()
        totals = totals.view(steps, TILE, -1).mul_(weights)
        values.mul_(weights[..., None])
        total, value = totals[0].add_(0.0), values[0].add_(0.0)  # -0.0 to +0.0, as an addend would
        for step in range(1, steps):
            total.add_(totals[step])
            value.add_(values[step])
        return value.div_(total[..., None])
