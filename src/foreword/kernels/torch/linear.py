"""Products over tiles of 16 rows and blocks of output columns: one fixed shape per weight.

A stock matrix product may order its sum by the number of rows; with the row count pinned to TILE it
cannot. Every weight is cut into blocks of output columns whose size depends on the weight's shape
alone; a (tile, block) pair is one task. `verify_blocks` proves at load, on this very machine and
PyTorch build, that a row's result does not depend on where in the tile it sits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.errors import KernelUnavailable
from foreword.kernels.torch.workers import Workers

TILE = 16  # rows in every product
BLOCK = 512  # output columns in a block, about


def to_tiles(rows: Tensor) -> Tensor:
    """[rows, width] -> [tiles, TILE, width], the last tile filled up with zeros."""
    count, width = rows.shape
    tiles = -(-count // TILE)
    if count == tiles * TILE:
        return rows.reshape(tiles, TILE, width)
    padded = torch.zeros(tiles * TILE, width, dtype=rows.dtype, device=rows.device)
    padded[:count] = rows
    return padded.view(tiles, TILE, width)


def column_blocks(columns: int) -> list[tuple[int, int]]:
    """Half-open column ranges of about BLOCK, by the width alone.

    An even number of them from 128 columns on, so that two threads share them evenly; of a very
    wide weight, rounding their size up to 16 columns may leave one fewer.
    """
    count = max(1, -(-columns // BLOCK))
    if columns >= 128 and count % 2:
        count += 1
    step = -(-columns // count)
    step = -(-step // 16) * 16 if step >= 16 else step
    return [(start, min(start + step, columns)) for start in range(0, columns, step)]


def product(tile: Tensor, weight: Tensor) -> Tensor:
    """[TILE, in] and [block, in] -> [block, TILE]: weight first: stock PyTorch is faster so."""
    return torch.mm(weight, tile.t())


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [out, in] as blocks of output columns, each [block, in] contiguous."""

    parts: tuple[Tensor, ...]
    ranges: tuple[tuple[int, int], ...]
    columns: int

    @staticmethod
    def of(weight: Tensor) -> Blocks:
        ranges = column_blocks(weight.shape[0])
        return Blocks(
            tuple(weight[start:stop].clone() for start, stop in ranges),
            tuple(ranges),
            weight.shape[0],
        )

    def apply(self, tiles: Tensor, workers: Workers) -> Tensor:
        """[tiles, TILE, in] in the weight's dtype -> float32 [tiles, TILE, out]."""
        out = torch.empty(
            (tiles.shape[0], TILE, self.columns), dtype=torch.float32, device=tiles.device
        )

        def task(item: tuple[int, int]) -> None:
            block, tile = item
            start, stop = self.ranges[block]
            out[tile, :, start:stop] = product(tiles[tile], self.parts[block]).t()

        workers.each(task, tasks(len(self.parts), tiles.shape[0]))
        return out


def tasks(blocks: int, tiles: int) -> list[tuple[int, int]]:
    """(block, tile) pairs, tiles innermost so that a block of weights stays in cache."""
    return [(block, tile) for block in range(blocks) for tile in range(tiles)]


def verify_blocks(blocks: Blocks) -> None:
    """Raise KernelUnavailable if a row of a tile is not computed the same way in every place."""
    for part in blocks.parts:
        random = torch.Generator("cpu").manual_seed(0)
        shape = (TILE, part.shape[1])
        rows = torch.randn(shape, generator=random, dtype=torch.float32, device="cpu")
        tile = rows.to(device=part.device, dtype=part.dtype)
        verify_rows(lambda x, w=part: product(x, w).t(), tile, f"{tuple(part.shape)} {part.dtype}")  # type: ignore[misc]


def verify_rows(op: Callable[[Tensor], Tensor], tile: Tensor, what: str) -> None:
    """`op` maps rows to rows; compare each row's bits in every other place and beside zeros."""
    expected = op(tile)
    for shift in range(1, tile.shape[0]):
        moved = op(torch.roll(tile, shift, dims=0))
        if not torch.equal(torch.roll(moved, -shift, dims=0), expected):
            raise KernelUnavailable(
                f"this PyTorch computes the product {what} differently for different rows of a "
                f"tile, so exactness cannot be promised here; use --backend reference"
            )
    for row in range(tile.shape[0]):
        alone = torch.zeros_like(tile)
        alone[0] = tile[row]
        if not torch.equal(op(alone)[0], expected[row]):
            raise KernelUnavailable(
                f"this PyTorch computes the product {what} differently beside zero rows, so "
                f"exactness cannot be promised here; use --backend reference"
            )
