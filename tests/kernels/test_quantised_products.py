"""One product with a quantised weight: the formula, the error, and every row by itself."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from quantised_rig import KINDS, line_of, made
from rig import assert_same_bits

from foreword.errors import KernelUnavailable
from foreword.kernels import _quantised
from foreword.kernels.torch import inputs as torch_inputs
from foreword.kernels.torch.inputs import Inputs
from foreword.kernels.torch.linear import TILE, to_tiles
from foreword.kernels.torch.quantised import (
    QuantisedBlocks,
    QuantisedEmbedding,
    verify_quantised,
)
from foreword.kernels.torch.workers import Workers
from foreword.model.weights.grouped import GroupedInt

CPU = torch.device("cpu")
MODES = ("a16", "a8")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_mode = pytest.mark.parametrize("numerics", MODES)


def weight_of(kind: str, rows: int = 40, columns: int = 512, seed: int = 1) -> GroupedInt:
    random = torch.Generator().manual_seed(seed)
    weight = made(kind, torch.randn(rows, columns, generator=random) * 0.3, seed)
    assert isinstance(weight, GroupedInt)
    return weight


def lines(count: int, columns: int = 512) -> torch.Tensor:
    return torch.stack([line_of(columns, seed) for seed in range(count)])


def tiled(weight: GroupedInt, rows: torch.Tensor, numerics: str) -> torch.Tensor:
    """The torch backend's product, [rows, out]."""
    workers = Workers(1)
    blocks = QuantisedBlocks.of(weight, numerics, CPU)
    out = blocks.apply(Inputs(to_tiles(rows), numerics, workers), workers)
    return out.view(-1, weight.shape[0])[: len(rows)]


def plain(weight: GroupedInt, rows: torch.Tensor, numerics: str) -> torch.Tensor:
    product = _quantised.product
    return torch.stack([product(weight, row, numerics, torch.float32) for row in rows])


def exactly(weight: GroupedInt, row: torch.Tensor, out: int) -> float:
    """a8 of one number, in Python's own integers and fractions, rounded to float32 step by step."""

    def rounded(value: Fraction | float) -> np.float32:
        return np.float32(float(value))  # float64 first: exact for products of two float32

    total = np.float32(0)
    offsets = weight.offsets()
    for group in range(weight.groups):
        part = [float(x) for x in row[group * weight.group : (group + 1) * weight.group]]
        q = weight.q[out, group * weight.group : (group + 1) * weight.group].tolist()
        step = np.float32(max(abs(x) for x in part)) / np.float32(127)
        whole = [max(-127, min(127, round(float(np.float32(x) / step)))) for x in part]
        dot, count = sum(a * b for a, b in zip(whole, q, strict=True)), sum(whole)
        term = weight.scales()[out, group].numpy() * rounded(dot)
        if offsets is not None:
            term = term + offsets[out, group].numpy() * rounded(count)
        total = total + step * term
    return float(total)


@each_kind
def test_a8_is_the_formula_in_whole_numbers(kind: str) -> None:
    weight, rows = weight_of(kind), lines(3)
    got = plain(weight, rows, "a8")
    for row, out in ((0, 0), (1, 17), (2, 39)):
        assert float(got[row, out]) == exactly(weight, rows[row], out)


@each_kind
def test_a8_of_torch_equals_the_reference_bit_for_bit(kind: str) -> None:
    """Dots are integers and the rest has one order, so even two backends agree."""
    weight, rows = weight_of(kind), lines(19)
    assert_same_bits(tiled(weight, rows, "a8"), plain(weight, rows, "a8"))


@each_kind
@pytest.mark.parametrize("columns", [256, 1536])
def test_a16_errs_at_most_twice_as_plain_pytorch(kind: str, columns: int) -> None:
    """On the same operands: inputs rounded to bfloat16, weights as they are stored."""
    weight, rows = weight_of(kind, 64, columns), lines(33, columns)
    rounded, dequantised = rows.bfloat16(), weight.dequantize()
    offsets = weight.offsets()
    exact = weight.q.double().view(64, weight.groups, -1) * weight.scales().double()[:, :, None]
    if offsets is not None:
        exact = exact + offsets.double()[:, :, None]
    true = torch.mm(rounded.double(), exact.view(64, columns).t())
    stock = torch.mm(rounded.float(), dequantised.t())
    wanted = (stock - true).abs()
    for got in (tiled(weight, rows, "a16"), plain(weight, rows, "a16")):
        error = (got - true).abs()
        assert error.max() <= 2 * wanted.max() + 1e-12
        assert error.square().mean().sqrt() <= 2 * wanted.square().mean().sqrt() + 1e-12


@each_kind
def test_a8_errs_as_eight_bits_do(kind: str) -> None:
    """No more than rounding every activation by half a step allows."""
    weight, rows = weight_of(kind), lines(5)
    dequantised = weight.dequantize()
    true = torch.mm(rows.double(), dequantised.double().t())
    steps = rows.view(5, weight.groups, -1).abs().amax(2, keepdim=True) / 127
    sizes = dequantised.abs().view(40, weight.groups, -1).sum(2)
    allowed = 0.51 * (steps * sizes.t()[None]).sum(1) + 1e-3
    assert bool(((plain(weight, rows, "a8") - true).abs() <= allowed).all())


@each_kind
@each_mode
def test_a_row_is_the_same_among_any_rows(kind: str, numerics: str) -> None:
    weight, rows = weight_of(kind), lines(33)
    whole = tiled(weight, rows, numerics)
    for row in (0, 1, 15, 16, 32):
        assert_same_bits(tiled(weight, rows[row : row + 1], numerics)[0], whole[row])
    order = torch.randperm(33, generator=torch.Generator().manual_seed(0))
    assert_same_bits(tiled(weight, rows[order], numerics), whole[order])


@each_mode
@pytest.mark.parametrize("rows", [1, 7, 100, 513, 700])
def test_any_number_of_outputs_and_threads(numerics: str, rows: int) -> None:
    weight, x = weight_of("Q4_K", rows, 256), lines(20, 256)
    wanted = tiled(weight, x, numerics)
    workers = Workers(3)
    blocks = QuantisedBlocks.of(weight, numerics, CPU)
    got = blocks.apply(Inputs(to_tiles(x), numerics, workers), workers)
    workers.close()
    assert_same_bits(got.view(-1, rows)[:20], wanted)
    assert_same_bits(plain(weight, x, "a8"), tiled(weight, x, "a8"))


EXTREMES = [(8, False, 128), (8, True, 1032), (8, True, 1536), (8, True, 8960), (4, True, 4864)]


@pytest.mark.parametrize(("bits", "signed", "group"), EXTREMES)
@pytest.mark.parametrize("sign", [1, -1])
def test_integer_dots_are_exact_at_the_extremes(
    bits: int, signed: bool, group: int, sign: int
) -> None:
    """Every activation +-127 and every weight as large as can be: nothing saturates or rounds
    before the one rounding of the sum."""
    largest = -(1 << (bits - 1)) if signed else (1 << bits) - 1
    q = torch.full((3, group), largest, dtype=torch.int8 if signed else torch.uint8)
    q[1, 0] += 1
    weight = GroupedInt(bits, group, signed, q, scale=torch.ones(3, 1))
    row = torch.full((1, group), 127.0 * sign)
    wanted = [float(np.float32(sign * 127 * int(part.sum()))) for part in q.int()]
    assert plain(weight, row, "a8")[0].tolist() == wanted
    assert tiled(weight, row, "a8")[0].tolist() == wanted


def test_quantising_a_row() -> None:
    """Half to even, clamped, by true division; both backends alike."""
    part = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 126.5] + [0.0] * 8)
    values, step = _quantised.quantised_line(part)
    assert step == 1.0
    assert values[:8].tolist() == [127, 0, 2, 2, 0, -2, -126, 126]
    rows, steps = torch_inputs.quantised(part.repeat(TILE, 1)[None])
    assert torch.equal(rows[0], values.repeat(TILE, 1))
    assert torch.equal(steps[0], step.repeat(TILE))


@pytest.mark.parametrize(
    ("largest", "whole"),
    [(0.0, 0), (1e-45, 0), (3e-44, 0), (2e-43, 127), (1e-38, 127), (1e34, 127)],
)
def test_rows_of_any_size(largest: float, whole: int) -> None:
    """Zero, so small that the step is zero, and large."""
    weight = weight_of("Q4_0")
    row = (lines(1).clamp(-1, 1) * largest).float()
    for numerics in MODES:
        got = (tiled(weight, row, numerics), plain(weight, row, numerics))
        assert bool(torch.isfinite(torch.stack(got)).all())
    values, step = _quantised.quantised_line(torch.full((16,), largest))
    assert (step > 0) == (whole > 0)
    assert bool((values == whole).all())


@each_mode
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_stays_in_its_row(numerics: str, bad: float) -> None:
    weight, rows = weight_of("Q4_1"), lines(18)
    wanted = tiled(weight, rows, numerics)
    rows[5, 100] = bad
    for got in (tiled(weight, rows, numerics), plain(weight, rows, numerics)):
        assert not bool(torch.isfinite(got[5]).any())
        keep = [row for row in range(18) if row != 5]
        assert bool(torch.isfinite(got[keep]).all())
    assert_same_bits(tiled(weight, rows, numerics)[keep], wanted[keep])


@each_kind
def test_an_embedding_row_is_the_dequantised_row(kind: str) -> None:
    weight = weight_of(kind)
    ids = torch.tensor([3, 0, 39, 3])
    wanted = weight.dequantize()[ids]
    assert_same_bits(QuantisedEmbedding.of(weight, CPU).rows(ids), wanted)
    for row, token in zip(wanted, ids.tolist(), strict=True):
        assert_same_bits(_quantised.embedding_row(weight, token, torch.float32), row)


@each_mode
def test_the_self_check_passes_here_and_catches_a_dishonest_product(
    numerics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = QuantisedBlocks.of(weight_of("Q4_1"), numerics, CPU)
    verify_quantised(blocks, numerics, CPU)
    honest = torch.bmm

    def dishonest(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = honest(a, b)
        out[:, :, 0] *= 1.0 + 2**-22
        return out

    monkeypatch.setattr(torch, "bmm", dishonest)
    with pytest.raises(KernelUnavailable, match=numerics):
        verify_quantised(blocks, numerics, CPU)
