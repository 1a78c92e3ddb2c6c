"""The rows that go into a product, in every form that the product's weights may want.

Several products share their inputs (query, key and value; gate and up), so a form is made once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.kernels.torch.workers import Workers

LARGEST = 127  # of an activation in a8


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Tiles cut along a quantised weight's groups. In a8 the values are whole numbers."""

    values: Tensor  # float32 [tiles, groups, TILE, group]
    sums: Tensor  # float32 [tiles, groups, 1, TILE]
    steps: Tensor | None  # a8: float32 [tiles, groups, 1, TILE]


class Inputs:
    """Tiles [tiles, TILE, in] in float32, or in the dtype of the weights."""

    def __init__(self, tiles: Tensor, numerics: str, workers: Workers) -> None:
        self.tiles, self.numerics, self.workers = tiles, numerics, workers
        self._plain: dict[torch.dtype, Tensor] = {}
        self._grouped: dict[int, GroupedRows] = {}

    def plain(self, dtype: torch.dtype) -> Tensor:
        """The tiles rounded to `dtype`."""
        if self.tiles.dtype == dtype:
            return self.tiles
        if dtype not in self._plain:
            self._plain[dtype] = self.tiles.to(dtype)
        return self._plain[dtype]

    def grouped(self, group: int) -> GroupedRows:
        """The tiles as a16 or a8 wants them for weights with this many columns in a group."""
        if group not in self._grouped:
            self._grouped[group] = self._cut(group)
        return self._grouped[group]

    def _cut(self, group: int) -> GroupedRows:
        count, rows, columns = self.tiles.shape
        groups, device = columns // group, self.tiles.device
        shape = (count, groups, rows)
        values = torch.empty((*shape, group), dtype=torch.float32, device=device)
        sums = torch.empty(shape, dtype=torch.float32, device=device)
        steps = torch.empty(shape, dtype=torch.float32, device=device)

        def cut(tile: int) -> None:
            part = self.tiles[tile].view(rows, groups, group).transpose(0, 1)
            if self.numerics == "a8":
                values[tile], steps[tile] = quantised(part)
            else:
                values[tile] = part.bfloat16()
            sums[tile] = values[tile].sum(-1)

        self.workers.each(cut, range(count))
        return GroupedRows(
            values, sums[:, :, None], steps[:, :, None] if self.numerics == "a8" else None
        )


def quantised(part: Tensor) -> tuple[Tensor, Tensor]:
    """[groups, TILE, group] -> whole numbers in [-127, 127] alike, and steps [groups, TILE].

    The step is divided by a tensor: PyTorch multiplies by the reciprocal of a scalar on a GPU.
    """
    largest = torch.full((1,), LARGEST, dtype=torch.float32, device=part.device)
    steps = part.abs().amax(-1) / largest
    usable = (steps > 0) & steps.isfinite()
    values = (part / steps[..., None]).round_().clamp_(-LARGEST, LARGEST)
    return torch.where(usable[..., None], values, torch.zeros_like(values)), steps
