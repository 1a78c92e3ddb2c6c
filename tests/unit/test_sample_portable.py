"""portable.log, exp and block_sum: accurate, and the same bits as a scalar twin in plain floats."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from foreword.sample import portable

mpmath.mp.prec = 120


def scalar_log(x: float) -> float:
    """The documented algorithm with Python floats, one IEEE operation at a time."""
    m, k = math.frexp(x)
    if m < portable.ROOT_HALF:
        m, k = m + m, k - 1
    f = m - 1.0
    s = f / (2.0 + f)
    z = s * s
    h = 0.5 * f * f
    total = 2.0 / 21
    for n in range(9, 0, -1):
        total = total * z + 2.0 / (2 * n + 1)
    return k * portable.LN2_HIGH - ((h - (s * (h + total * z) + k * portable.LN2_LOW)) - f)


def scalar_exp(x: float) -> float:
    if x < -708.0:
        return 0.0
    k = round(x * portable.INVERSE_LN2)  # half to even, as rint
    r = (x - k * portable.LN2_HIGH) - k * portable.LN2_LOW
    total = 1.0 / math.factorial(13)
    for n in range(12, 1, -1):
        total = total * r + 1.0 / math.factorial(n)
    return math.ldexp(1.0 + (r + r * r * total), k)


def log_inputs() -> np.ndarray:
    rng = np.random.default_rng(1)
    parts = [
        rng.uniform(0.0, 1.0, 500),
        1.0 - 10.0 ** -rng.uniform(0, 16, 500),
        1.0 + 10.0 ** -rng.uniform(0, 16, 500),
        10.0 ** rng.uniform(-300, 300, 300),
        [2.0**-54, 1.0 - 2.0**-53, 1.0, 2.0, 0.5, portable.ROOT_HALF, math.sqrt(2.0)],
    ]
    x = np.concatenate(parts)
    return x[x > 0]


def exp_inputs() -> np.ndarray:
    rng = np.random.default_rng(2)
    small = -(10.0 ** -rng.uniform(0, 18, 300))
    special = [0.0, -0.0, -708.0, -0.5 * math.log(2.0), -math.log(2.0), 700.0, -708.5, -5000.0]
    return np.concatenate([rng.uniform(-708, 0, 700), rng.uniform(-2, 2, 700), small, special])


def worst_ulps(got: np.ndarray, true: list[mpmath.mpf]) -> float:
    errors = (
        abs(mpmath.mpf(value) - right) / math.ulp(value)
        for value, right in zip(got.tolist(), true, strict=True)
    )
    return float(max(errors))


def test_constants_are_the_rounded_true_values() -> None:
    ln2 = mpmath.log(2)
    assert float(mpmath.floor(ln2 * 2**32) / 2**32) == portable.LN2_HIGH
    assert float(ln2 - portable.LN2_HIGH) == portable.LN2_LOW
    assert float(1 / ln2) == portable.INVERSE_LN2
    assert float(mpmath.sqrt(mpmath.mpf(0.5))) == portable.ROOT_HALF


def test_log_is_within_one_ulp() -> None:
    x = log_inputs()
    assert worst_ulps(portable.log(x), [mpmath.log(value) for value in x.tolist()]) < 1.0


def test_exp_is_within_one_ulp() -> None:
    x = exp_inputs()
    x = x[x >= portable.EXP_FLOOR]
    assert worst_ulps(portable.exp(x), [mpmath.exp(value) for value in x.tolist()]) < 1.0


def test_log_has_the_bits_of_its_scalar_twin() -> None:
    x = log_inputs()
    assert portable.log(x).tolist() == [scalar_log(value) for value in x.tolist()]


def test_exp_has_the_bits_of_its_scalar_twin() -> None:
    x = exp_inputs()
    assert portable.exp(x).tolist() == [scalar_exp(value) for value in x.tolist()]


def test_exact_points() -> None:
    assert portable.log(np.array([1.0]))[0] == 0.0
    ends = portable.exp(np.array([0.0, -np.inf, np.nextafter(-708.0, -np.inf)]))
    assert ends.tolist() == [1.0, 0.0, 0.0]
    assert portable.exp(np.array([-708.0]))[0] >= np.finfo(np.float64).tiny  # never subnormal


@pytest.mark.parametrize("size", [1, 7, 4095, 4096, 4097, 10000])
def test_exp_bits_do_not_depend_on_the_neighbours(size: int) -> None:
    x = np.random.default_rng(size).uniform(-50, 0, size)
    alone = [float(portable.exp(x[i : i + 1])[0]) for i in range(0, size, max(1, size // 50))]
    assert portable.exp(x)[:: max(1, size // 50)].tolist() == alone


def plain_block_sum(x: list[float]) -> float:
    total = None
    for start in range(0, len(x), 1024):
        block = None
        for value in x[start : start + 1024]:
            block = value if block is None else block + value
        assert block is not None
        total = block if total is None else total + block
    assert total is not None
    return total


@pytest.mark.parametrize("size", [1, 2, 1023, 1024, 1025, 2048, 5000, 49152])
def test_block_sum_is_left_to_right_in_blocks(size: int) -> None:
    x = np.random.default_rng(size).lognormal(0, 4, size)
    assert portable.block_sum(x) == plain_block_sum(x.tolist())
    assert portable.block_sum(x, np.arange(size)) == plain_block_sum(x.tolist())


def test_block_sum_order_matters_here() -> None:
    """The test above would pass for any order if sums were exact; they are not."""
    x = np.random.default_rng(5000).lognormal(0, 4, 5000)
    assert portable.block_sum(x) != float(np.add.accumulate(x)[-1])
    assert portable.block_sum(x) != math.fsum(x.tolist())


def test_block_sum_of_chosen_ids_counts_the_others_as_zero() -> None:
    rng = np.random.default_rng(3)
    x = rng.lognormal(0, 4, 9000)
    ids = np.sort(rng.choice(9000, 300, replace=False))
    dense = np.zeros(9000)
    dense[ids] = x[ids]
    assert portable.block_sum(x[ids], ids) == portable.block_sum(dense)
