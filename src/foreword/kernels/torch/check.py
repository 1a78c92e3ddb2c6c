"""Proves at load that attention treats a row alike in every place, on this machine and PyTorch.

As `linear.verify_rows` for products: the shapes of attention's products and exponentials come from
the model, and how a stock product handles a shape is its own affair.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from foreword.errors import KernelUnavailable
from foreword.kernels.torch.attention import attend
from foreword.kernels.torch.linear import TILE
from foreword.kernels.torch.pieces import plan_pieces
from foreword.kernels.torch.workers import Workers
from foreword.model.batch import Batch, Segment


def verify_pieces(heads: int, kv_heads: int, dim: int, lanes: int, device: torch.device) -> None:
    """Raise KernelUnavailable if a row alone differs from the row as any of TILE siblings.

    Position lanes + lanes // 2 sees one partition whole and one in part; TILE siblings fill every
    place of the pieces and of the merge.
    """
    cached = lanes + lanes // 2
    random = torch.Generator("cpu").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        made = torch.randn(shape, generator=random, dtype=torch.float32, device="cpu")
        return made.to(device)

    keys, values = (normal(1 + cached + TILE, kv_heads, dim) for _ in range(2))
    keys[0], values[0] = 0.0, 0.0
    for own in (keys, values):
        own[cached + 1 :] = own[cached + 1]  # siblings: the same key and value
    line = normal(heads, dim)
    workers = Workers(1)

    def run(places: list[int], count: int) -> Tensor:
        """`line` in some places of `count` siblings, other queries in the rest."""
        query = torch.zeros((TILE, heads, dim), dtype=torch.float32, device=device)
        query[:count] = normal(count, heads, dim)
        query[places] = line
        segment = Segment((0,) * count, (-1,) * count, cached, np.arange(1, 1 + cached + count), ())
        pieces = plan_pieces(Batch.of([segment]), None, lanes, device)
        return attend(query, keys, values, pieces, workers)[places]

    alone = run([0], 1)[0]
    every = list(range(TILE))
    for places in (every, *([place] for place in every)):
        for row in run(places, TILE):
            if not torch.equal(row, alone):
                raise KernelUnavailable(
                    f"this PyTorch computes attention with {heads} heads, {kv_heads} KV heads of "
                    f"{dim} differently for different rows, so exactness cannot be promised here; "
                    f"use --backend reference"
                )
