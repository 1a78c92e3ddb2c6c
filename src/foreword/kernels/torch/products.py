"""The products of a layer, whatever its weights are: floats, quantised, or some of each.

A product gives float32 tiles [tiles, TILE, out] from `Inputs`. The work is cut into (tile, block of
output columns) pairs; the blocks depend on the number of output columns alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import silu

from foreword.kernels.torch.adapters import Added, add_to_columns
from foreword.kernels.torch.inputs import Inputs
from foreword.kernels.torch.linear import Blocks, product, tasks
from foreword.kernels.torch.quantised import QuantisedBlocks
from foreword.kernels.torch.workers import Workers


class Product(Protocol):
    def apply(self, inputs: Inputs, workers: Workers) -> Tensor:
        """float32 [tiles, TILE, out]."""


Pair = tuple[Added, Added]  # what adapters add to gate and up
NOTHING: Pair = {}, {}


class GateProduct(Protocol):
    def apply(self, inputs: Inputs, workers: Workers, added: Pair = NOTHING) -> Tensor:
        """silu(gate) * up, [tiles, TILE, out]."""


class BlockProduct(Product, Protocol):
    def block(self, inputs: Inputs, block: int, tile: int) -> Tensor:
        """float32 [columns of the block, TILE]."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Floats. `rounding`: the dtype inputs are rounded to; `blocks` may be wider."""

    blocks: Blocks
    rounding: torch.dtype

    def _tiles(self, inputs: Inputs) -> Tensor:
        return inputs.plain(self.rounding).to(self.blocks.parts[0].dtype)

    def apply(self, inputs: Inputs, workers: Workers) -> Tensor:
        return self.blocks.apply(self._tiles(inputs), workers)

    def block(self, inputs: Inputs, block: int, tile: int) -> Tensor:
        return product(self._tiles(inputs)[tile], self.blocks.parts[block]).float()


@dataclass(frozen=True, slots=True)
class Joined:
    """Products of the same inputs, outputs side by side."""

    parts: tuple[Product, ...]

    def apply(self, inputs: Inputs, workers: Workers) -> Tensor:
        return torch.cat([part.apply(inputs, workers) for part in self.parts], dim=-1)


@dataclass(frozen=True, slots=True)
class FusedGate:
    """silu(gate) * up of float weights. parts [2 * block, in]: a block of gate rows, then of up."""

    parts: tuple[Tensor, ...]
    biases: tuple[Tensor, ...] | None

    def apply(self, inputs: Inputs, workers: Workers, added: Pair = NOTHING) -> Tensor:
        tiles = inputs.plain(self.parts[0].dtype)
        step, width = self.parts[0].shape[0] // 2, sum(part.shape[0] // 2 for part in self.parts)
        inner = torch.empty(
            (*tiles.shape[:2], width), dtype=inputs.tiles.dtype, device=tiles.device
        )

        def task(item: tuple[int, int]) -> None:
            block, tile = item
            part = self.parts[block]
            both = product(tiles[tile], part).float()
            if self.biases is not None:
                both = both + self.biases[block][:, None]
            half = part.shape[0] // 2
            add_to_columns(both[:half], added[0], tile, block * step)
            add_to_columns(both[half:], added[1], tile, block * step)
            gated = silu(both[:half]).mul_(both[half:])
            inner[tile, :, block * step : block * step + half] = gated.t()

        workers.each(task, tasks(len(self.parts), tiles.shape[0]))
        return inner


@dataclass(frozen=True, slots=True)
class Gate:
    """silu(gate) * up of any two products with the same number of output columns."""

    gate: BlockProduct
    up: BlockProduct
    ranges: tuple[tuple[int, int], ...]
    gate_bias: Tensor | None
    up_bias: Tensor | None

    def apply(self, inputs: Inputs, workers: Workers, added: Pair = NOTHING) -> Tensor:
        tiles = inputs.tiles
        shape = (*tiles.shape[:2], self.ranges[-1][1])
        inner = torch.empty(shape, dtype=torch.float32, device=tiles.device)

        def one(
            source: BlockProduct, bias: Tensor | None, more: Added, item: tuple[int, int]
        ) -> Tensor:
            out = source.block(inputs, *item)
            start, stop = self.ranges[item[0]]
            out = out if bias is None else out + bias[start:stop, None]
            return add_to_columns(out, more, item[1], start)

        def task(item: tuple[int, int]) -> None:
            start, stop = self.ranges[item[0]]
            gated = silu(one(self.gate, self.gate_bias, added[0], item)).mul_(
                one(self.up, self.up_bias, added[1], item)
            )
            inner[item[1], :, start:stop] = gated.t()

        self._prepare(inputs)
        workers.each(task, tasks(len(self.ranges), tiles.shape[0]))
        return inner

    def _prepare(self, inputs: Inputs) -> None:
        """Forms of the inputs are made before threads ask for them."""
        for source in (self.gate, self.up):
            if isinstance(source, QuantisedBlocks):
                inputs.grouped(source.group)
            elif isinstance(source, Dense):
                inputs.plain(source.rounding)
