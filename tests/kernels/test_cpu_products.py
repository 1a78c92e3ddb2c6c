"""Products of the cpu backend: against the specification, exact where integers are, at any width."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cpu_rig import every_isa, kernels_of, needs_native, pack, product
from quantised_rig import KINDS, line_of, made
from rig import assert_same_bits

from foreword.kernels import _quantised
from foreword.model.weights.grouped import GroupedInt

pytestmark = needs_native
WIDTHS = (1, 2, 3, 4, 5, 8, 9, 15, 16, 17, 32, 33)
QUANTISED_KINDS = [kind for kind in KINDS if kind != "dense"]


def weight_of(kind: str, rows: int, columns: int) -> Any:
    random = torch.Generator().manual_seed(1)
    return made(kind, torch.randn(rows, columns, generator=random), 3)


def lines(rows: int, columns: int) -> torch.Tensor:
    return torch.stack([line_of(columns, seed) for seed in range(rows)])


@every_isa
@pytest.mark.parametrize("numerics", ["a8", "a16"])
@pytest.mark.parametrize("kind", QUANTISED_KINDS)
def test_quantised_products_follow_the_specification(kind: str, numerics: str, isa: str) -> None:
    """Within three times the error of the specification's own float32 sums; any width alike."""
    weight, x = weight_of(kind, 40, 256), lines(37, 256)
    packed = pack(numerics, isa, weight)
    got = product(numerics, isa, packed, x, 40)
    for row in range(4):
        line = x[row]
        plain = _quantised.product(weight, line, numerics, torch.float32).double()
        exact_line = line if numerics == "a8" else line.double()
        true = _quantised.product(weight, exact_line, numerics, torch.float64)
        allowed = 3 * (plain - true).abs().max() + 1e-6 * true.abs().max()
        assert (got[row].double() - true).abs().max() <= allowed
    for width in WIDTHS:
        assert_same_bits(product(numerics, isa, packed, x[:width], 40), got[:width], str(width))
        assert_same_bits(product(numerics, isa, packed, x[-width:], 40), got[-width:], str(width))


@every_isa
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_products_and_their_widths(dtype: torch.dtype, numerics: str, isa: str) -> None:
    """Odd shapes, a bias; stock PyTorch's error is the measure."""
    random = torch.Generator().manual_seed(2)
    weight = torch.randn(41, 75, generator=random).to(dtype)
    bias, x = torch.randn(41, generator=random), torch.randn(37, 75, generator=random)
    packed = pack(numerics, isa, weight, bias)
    got = product(numerics, isa, packed, x, 41)
    w, line = weight, x
    if numerics == "bfloat16":
        w, line = weight.bfloat16(), x.bfloat16()
    true = line.double() @ w.double().t() + bias.double()
    stock = (line.float() @ w.float().t() + bias).double()
    assert (got.double() - true).abs().max() <= 2 * (stock - true).abs().max() + 1e-6
    for width in WIDTHS:
        assert_same_bits(product(numerics, isa, packed, x[:width], 41), got[:width], str(width))


@every_isa
@pytest.mark.parametrize("width", [1, 3, 16])
@pytest.mark.parametrize("signed", [False, True])
def test_integer_dots_are_exact_at_the_extremes(signed: bool, width: int, isa: str) -> None:
    """255 x -127 in every place: any step of 16 bits would saturate."""
    group, ends = 128, (-128, 127) if signed else (0, 255)
    q = torch.full((16, 2 * group), ends[1], dtype=torch.int8 if signed else torch.uint8)
    q[1::2] = ends[0]
    q[5, ::3] = ends[0]
    weight = GroupedInt(8, group, signed, q, scale=torch.ones(16, 2).half())
    for value in (-1.0, 1.0):
        x = torch.full((width, 2 * group), value)
        x[:, 1] *= -1
        exact = (q.double() * (x[0] * 127).double()).sum(1) / 127
        got = product("a8", isa, pack("a8", isa, weight), x, 16)
        for row in got:
            assert (row.double() - exact).abs().max() <= 1e-5 * exact.abs().max()
        counted = torch.round(got[0].double() * 127)
        assert torch.equal(counted, torch.round(exact * 127))


@every_isa
@pytest.mark.parametrize("kind", QUANTISED_KINDS)
def test_embedding_rows_are_the_dequantised_ones(kind: str, isa: str) -> None:
    weight = weight_of(kind, 40, 256)
    packed, wanted = pack("a8", isa, weight), weight.dequantize()
    for token in (0, 15, 16, 39):
        row = torch.empty(256)
        kernels_of("a8", isa).native.embed(packed, isa, token, row.data_ptr())
        assert_same_bits(row, wanted[token], f"token {token}")


@pytest.mark.parametrize("kind", QUANTISED_KINDS)
def test_packed_bytes_stay_near_the_files(kind: str) -> None:
    """At most 1.03 times, types that are widened to 4 bits excepted."""
    weight = weight_of(kind, 64, 512)
    ratio = pack("a8", "portable", weight).num_bytes / weight.num_bytes
    assert ratio <= (1.12 if kind in ("Q2_K", "Q3_K") else 1.03)


@every_isa
@pytest.mark.parametrize("numerics", ["float32", "bfloat16", "a8", "a16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_stays_in_its_row(value: float, numerics: str, isa: str) -> None:
    weight: Any = weight_of("Q4_K", 32, 256)
    weight = weight.dequantize() if numerics in ("float32", "bfloat16") else weight
    packed, x = pack(numerics, isa, weight), lines(20, 256)
    wanted = product(numerics, isa, packed, x, 32)
    x[7, 100] = value
    got = product(numerics, isa, packed, x, 32)
    assert not got[7].isfinite().any()
    others = [row for row in range(20) if row != 7]
    assert_same_bits(got[others], wanted[others])
