"""What adapters add, on tiles of fixed shape.

A tile goes whole through the two products of each adapter that one of its rows has, and the result
reaches the rows of that adapter alone. So a row's bits depend on its own numbers and adapter;
`verify_factors` proves it at load for each shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.kernels.ops import LowRank
from foreword.kernels.torch.inputs import Inputs
from foreword.kernels.torch.linear import TILE, product, verify_rows
from foreword.kernels.torch.workers import Workers
from foreword.model.batch import Batch

RANKS = 16  # the rank is filled up with zeros to a multiple

Places = Mapping[int, Tensor]  # tile -> rows of it
Added = Mapping[int, SequenceOf[tuple[Tensor, Tensor]]]  # tile -> rows, float32 [out, rows]


@dataclass(frozen=True, slots=True)
class Factors:
    down: Tensor  # float32 [rank, in]
    up: Tensor  # float32 [out, rank]
    scale: float

    @staticmethod
    def of(part: LowRank, device: torch.device) -> Factors:
        rank = part.down.shape[0]
        whole = -(-rank // RANKS) * RANKS
        down = torch.zeros(whole, part.down.shape[1], dtype=torch.float32, device=device)
        up = torch.zeros(part.up.shape[0], whole, dtype=torch.float32, device=device)
        down[:rank], up[:, :rank] = part.down, part.up
        return Factors(down, up, part.scale)

    @property
    def kind(self) -> tuple[object, ...]:
        return "adapter", self.down.shape, self.up.shape

    def apply(self, tile: Tensor) -> Tensor:
        """float32 [TILE, in] -> [out, TILE]."""
        return torch.mm(self.up, product(tile, self.down).mul_(self.scale))


AdapterFactors = SequenceOf[Mapping[str, Factors]]  # per layer, by projection


class Extra:
    """What adapters add to the products of one layer in one pass."""

    def __init__(
        self,
        users: SequenceOf[tuple[Mapping[str, Factors], Places]],
        rounding: torch.dtype,
        workers: Workers,
    ) -> None:
        self._users, self._rounding, self._workers = users, rounding, workers

    def added(self, projection: str, inputs: Inputs) -> Added:
        """For the inputs of that product."""
        found: dict[int, list[tuple[Tensor, Tensor]]] = {}
        tasks: list[tuple[Factors, int, Tensor]] = []
        for layer, places in self._users:
            if projection in layer:
                tasks += [(layer[projection], tile, rows) for tile, rows in places.items()]
        tiles = inputs.plain(self._rounding)

        def task(item: tuple[Factors, int, Tensor]) -> None:
            factors, tile, rows = item
            delta = factors.apply(tiles[tile].float())
            found.setdefault(tile, []).append((rows, delta.index_select(1, rows)))

        self._workers.each(task, tasks)
        return found


def places(batch: Batch, device: torch.device) -> dict[str, Places]:
    """By adapter: the rows that have it, tile by tile; empty in a batch without."""
    rows: dict[str, dict[int, list[int]]] = {}
    first = 0
    for segment in batch.segments:
        if segment.adapter is not None:
            tiles = rows.setdefault(segment.adapter, {})
            for row in range(first, first + len(segment.parents)):
                tiles.setdefault(row // TILE, []).append(row % TILE)
        first += len(segment.parents)
    return {
        name: {tile: torch.tensor(found, device=device) for tile, found in tiles.items()}
        for name, tiles in rows.items()
    }


def add_to_rows(line: Tensor, added: Added, tile: int, start: int = 0) -> Tensor:
    """Adds to a tile [TILE, columns], in place, from column `start` on."""
    for rows, delta in added.get(tile, ()):
        line[:, start : start + delta.shape[0]].index_add_(0, rows, delta.t())
    return line


def add_to_columns(block: Tensor, added: Added, tile: int, start: int) -> Tensor:
    """Adds to a block [columns, TILE] of the columns from `start` on, in place."""
    for rows, delta in added.get(tile, ()):
        block.index_add_(1, rows, delta[start : start + block.shape[0]])
    return block


def verify_factors(factors: Factors) -> None:
    """Raise KernelUnavailable if a row of a tile is not computed the same way in every place."""
    random = torch.Generator("cpu").manual_seed(0)
    shape = (TILE, factors.down.shape[1])
    tile = torch.randn(shape, generator=random, dtype=torch.float32, device="cpu")
    what = f"of an adapter, {tuple(factors.up.shape)}"
    verify_rows(lambda rows: factors.apply(rows).t(), tile.to(factors.down.device), what)
