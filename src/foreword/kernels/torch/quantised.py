"""Products with a quantised weight, modes a16 and a8, on tiles of fixed shape.

A block of output columns is a batch of products, one per group of input columns, whose results are
scaled and added in ascending order of the groups. In a8 the dot of a group is a sum of integers; it
is taken in float32 over runs of columns so short that every partial sum is exact, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.kernels.torch.inputs import LARGEST, Inputs
from foreword.kernels.torch.linear import TILE, column_blocks, tasks, verify_rows
from foreword.kernels.torch.workers import Workers
from foreword.model.weights.grouped import GroupedInt

_EXACT = 1 << 24  # whole numbers up to here are exact in float32


@dataclass(frozen=True, slots=True)
class Part:
    """A block of output columns."""

    q: Tensor  # int8 or uint8 [groups * runs, block, columns of a run]
    scale: Tensor  # float32 [groups, block, 1]
    offset: Tensor | None  # float32 [groups, block, 1]


@dataclass(frozen=True, slots=True)
class QuantisedBlocks:
    """A weight [out, in]: one byte a number, and its scales in float32."""

    parts: tuple[Part, ...]
    ranges: tuple[tuple[int, int], ...]
    columns: int
    group: int
    runs: int  # per group

    @staticmethod
    def of(weight: GroupedInt, numerics: str, device: torch.device) -> QuantisedBlocks:
        rows = weight.shape[0]
        runs = _runs(weight) if numerics == "a8" else 1
        ranges = tuple(column_blocks(rows))
        return QuantisedBlocks(
            tuple(_part(weight.rows(slice(*bounds)), runs, device) for bounds in ranges),
            ranges,
            rows,
            weight.group,
            runs,
        )

    def apply(self, inputs: Inputs, workers: Workers) -> Tensor:
        """float32 [tiles, TILE, out]."""
        tiles = inputs.tiles
        inputs.grouped(self.group)  # made before threads ask for it
        shape = (*tiles.shape[:2], self.columns)
        out = torch.empty(shape, dtype=torch.float32, device=tiles.device)

        def task(item: tuple[int, int]) -> None:
            start, stop = self.ranges[item[0]]
            out[item[1], :, start:stop] = self.block(inputs, *item).t()

        workers.each(task, tasks(len(self.parts), tiles.shape[0]))
        return out

    def block(self, inputs: Inputs, block: int, tile: int) -> Tensor:
        """float32 [columns of the block, TILE]."""
        rows, part = inputs.grouped(self.group), self.parts[block]
        terms = self._dots(rows.values[tile], part.q).mul_(part.scale)
        if part.offset is not None:
            terms += part.offset * rows.sums[tile]
        if rows.steps is not None:
            terms *= rows.steps[tile]
        total = torch.zeros_like(terms[0])
        for term in terms:
            total += term
        return total

    def _dots(self, values: Tensor, q: Tensor) -> Tensor:
        """float32 [groups, block, TILE], of values [groups, TILE, group]."""
        groups, rows, _ = values.shape
        if self.runs > 1:
            values = values.view(groups, rows, self.runs, -1).transpose(1, 2)
            values = values.reshape(groups * self.runs, rows, -1)
        dots = torch.bmm(q.float(), values.transpose(1, 2))
        if self.runs > 1:  # exact integers: below 2^53
            dots = dots.view(groups, self.runs, -1, rows).double().sum(1).float()
        return dots


def _runs(weight: GroupedInt) -> int:
    """The fewest runs of equal length in a group whose sums stay exact."""
    largest = 1 << (weight.bits - 1 if weight.signed else weight.bits)
    for runs in range(1, weight.group + 1):
        if weight.group % runs == 0 and weight.group // runs * LARGEST * largest <= _EXACT:
            return runs
    raise AssertionError(weight.group)


def _part(weight: GroupedInt, runs: int, device: torch.device) -> Part:
    rows, columns = weight.shape
    pieces = weight.groups * runs
    q = weight.q.view(rows, pieces, columns // pieces).transpose(0, 1)
    offset = weight.offsets()
    return Part(
        _own(q, device),
        _own(weight.scales().t()[:, :, None], device),
        None if offset is None else _own(offset.t()[:, :, None], device),
    )


def _own(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device=device, copy=True, memory_format=torch.contiguous_format).contiguous()


@dataclass(frozen=True, slots=True)
class QuantisedEmbedding:
    q: Tensor  # [vocab, hidden]
    scale: Tensor  # float32 [vocab, groups]
    offset: Tensor | None

    @staticmethod
    def of(weight: GroupedInt, device: torch.device) -> QuantisedEmbedding:
        offset = weight.offsets()
        return QuantisedEmbedding(
            _own(weight.q, device),
            _own(weight.scales(), device),
            None if offset is None else _own(offset, device),
        )

    def rows(self, token_ids: Tensor) -> Tensor:
        """float32 [len(token_ids), hidden]: scale * q + offset."""
        scale = self.scale[token_ids]
        values = self.q[token_ids].float().view(*scale.shape, -1) * scale[:, :, None]
        if self.offset is not None:
            values = values + self.offset[token_ids][:, :, None]
        return values.view(len(token_ids), -1)


def verify_quantised(blocks: QuantisedBlocks, numerics: str, device: torch.device) -> None:
    """Raise KernelUnavailable if a row of a tile is not computed the same way in every place."""
    workers = Workers(1)
    width = blocks.group * len(blocks.parts[0].scale)
    random = torch.Generator("cpu").manual_seed(0)
    tile = torch.randn((TILE, width), generator=random, dtype=torch.float32, device="cpu").to(
        device
    )
    for shape in {part.q.shape: place for place, part in enumerate(blocks.parts)}.items():
        what = f"{tuple(shape[0])} {numerics}"
        verify_rows(
            lambda rows, place=shape[1]: blocks.block(  # type: ignore[misc]
                Inputs(rows[None], numerics, workers), place, 0
            ).t(),
            tile,
            what,
        )
