"""Tiles, blocks, and the self check that refuses a machine whose products see other rows."""

from __future__ import annotations

import pytest
import torch
from rig import CONFIGS, assert_same_bits, rotary
from torch.nn.functional import linear

from foreword.errors import KernelUnavailable
from foreword.kernels.torch import TorchKernels, backend
from foreword.kernels.torch.attention import Entries
from foreword.kernels.torch.check import verify_pieces
from foreword.kernels.torch.linear import (
    BLOCK,
    TILE,
    Blocks,
    column_blocks,
    to_tiles,
    verify_blocks,
    verify_rows,
)
from foreword.kernels.torch.workers import Workers

WIDTHS = [1, 7, 16, 48, 100, 127, 128, 144, 500, 512, 513, 576, 960, 1536, 3072, 49152, 151936]


@pytest.mark.parametrize("columns", WIDTHS)
def test_blocks_cover_every_column_once(columns: int) -> None:
    ranges = column_blocks(columns)
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == columns
    assert all(0 < stop - start <= BLOCK + 16 for start, stop in ranges)
    if columns >= 128 and len(ranges) < 32:
        assert len(ranges) % 2 == 0, "two threads share the blocks evenly"


@pytest.mark.parametrize("rows", [1, 2, 15, 16, 17, 31, 32, 64])
def test_tiles_hold_every_row_and_zeros(rows: int) -> None:
    made = torch.randn(rows, 5)
    tiles = to_tiles(made)
    assert tiles.shape == (-(-rows // TILE), TILE, 5)
    assert torch.equal(tiles.view(-1, 5)[:rows], made)
    assert not tiles.view(-1, 5)[rows:].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "columns", "inner"), [(40, 700, 96), (3, 1, 7), (17, 130, 33)])
def test_a_product_is_the_product(dtype: torch.dtype, rows: int, columns: int, inner: int) -> None:
    weight, x = torch.randn(columns, inner).to(dtype), torch.randn(rows, inner).to(dtype)
    got = Blocks.of(weight).apply(to_tiles(x), Workers(1)).view(-1, columns)[:rows]
    true = x.double() @ weight.double().t()
    stock = linear(x, weight).double()
    assert (got - true).abs().max() <= 2 * (stock - true).abs().max() + 1e-12
    for row in range(rows):
        alone = Blocks.of(weight).apply(to_tiles(x[row : row + 1]), Workers(1))
        assert_same_bits(alone[0, 0], got[row])


def test_the_self_check_passes_honest_products() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        verify_blocks(Blocks.of(torch.randn(144, 64).to(dtype)))


@pytest.mark.parametrize("backwards", [False, True])
def test_each_dtype_of_a_shape_is_checked_once(
    backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 numerics the head stays float32: a layer's weight may have its very shape."""
    checked = []

    def note(blocks: Blocks) -> None:
        checked.extend((tuple(part.shape), part.dtype) for part in blocks.parts)

    kernels = TorchKernels(CONFIGS["llama"], "bfloat16", rotary(CONFIGS["llama"]))
    monkeypatch.setattr(backend, "verify_blocks", note)
    packs = [
        lambda: kernels.pack_head(torch.ones(64), torch.randn(512, 64)),
        lambda: kernels._blocks(torch.randn(512, 64)),
    ]
    for pack in reversed(packs) if backwards else packs:
        pack()
        pack()
    assert len(checked) == 2
    assert set(checked) == {((256, 64), torch.float32), ((256, 64), torch.bfloat16)}


def by_place(x: torch.Tensor) -> torch.Tensor:
    """The first half of the tile sums its products in another order than the second."""
    weight = torch.randn(32, x.shape[1], generator=torch.Generator().manual_seed(1))
    forward, backward = x @ weight.t(), x.flip(1) @ weight.flip(1).t()
    return torch.cat([forward[:8], backward[8:]])


def by_neighbours(x: torch.Tensor) -> torch.Tensor:
    """Every row is scaled by the tile's largest value and back, as dynamic quantising would."""
    scale = x.abs().amax() * 1.1
    weight = torch.randn(32, x.shape[1], generator=torch.Generator().manual_seed(1))
    return ((x / scale) @ weight.t()) * scale


def by_zero_rows(x: torch.Tensor) -> torch.Tensor:
    """A kernel that skips zero rows takes another path for the rest."""
    weight = torch.randn(32, x.shape[1], generator=torch.Generator().manual_seed(1))
    if bool((x == 0).all(1).any()):
        return x.flip(1) @ weight.flip(1).t()
    return x @ weight.t()


@pytest.mark.parametrize("planted", [by_place, by_neighbours, by_zero_rows])
def test_the_self_check_catches_a_row_dependent_product(planted) -> None:  # type: ignore[no-untyped-def]
    tile = torch.randn(TILE, 100, generator=torch.Generator().manual_seed(0))
    with pytest.raises(KernelUnavailable, match=r"planted.*--backend reference"):
        verify_rows(planted, tile, "planted")


@pytest.mark.parametrize("lanes", [16, 128])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 16), (9, 3, 64), (2, 2, 20)])
def test_the_attention_self_check_passes_here(
    heads: int, kv_heads: int, dim: int, lanes: int
) -> None:
    verify_pieces(heads, kv_heads, dim, lanes, torch.device("cpu"))


def test_the_attention_self_check_catches_a_row_dependent_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first row of a product sums in another order than the rest."""
    honest = torch.bmm

    def dishonest(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> object:
        made = honest(a, b)
        made[:, :1] = honest(a.flip(2), b.flip(1))[:, :1]
        return made if out is None else out.copy_(made)

    monkeypatch.setattr(torch, "bmm", dishonest)
    with pytest.raises(KernelUnavailable, match="attention"):
        verify_pieces(4, 2, 16, 128, torch.device("cpu"))


@pytest.mark.parametrize("row", [0, 1, 7, 8, 15])
def test_the_attention_self_check_looks_at_every_row_of_a_merge(
    row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Entries.merged

    def dishonest(self: Entries, index: torch.Tensor) -> torch.Tensor:
        made = honest(self, index)
        made[row] = made[row].nextafter(torch.zeros(()))
        return made

    monkeypatch.setattr(Entries, "merged", dishonest)
    with pytest.raises(KernelUnavailable, match="attention"):
        verify_pieces(4, 2, 16, 128, torch.device("cpu"))
