"""log, exp and sums that give the same bits on every machine.

Everything is float64 and made of + - * / plus exact steps (frexp, rint, a power of two from its
exponent bits), each rounded once by IEEE 754, in the order written here; a C++ twin that keeps the
order and fuses nothing has the same bits. The C library's log and exp differ between machines, so
they never decide a token. Errors stay below 1 ulp of the true value. Knows no logits, no tokens.

Subnormal numbers never reach a result, so the processor's flush-to-zero setting changes nothing.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]

BLOCK = 1024  # ids per block of a reduction over the vocabulary
LN2_HIGH = float.fromhex(
    "0x1.62e42feep-1"
)  # ln 2 cut to 32 bits: k * LN2_HIGH is exact, |k| < 2^20
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # ln 2 - LN2_HIGH, rounded
INVERSE_LN2 = float.fromhex("0x1.71547652b82fep+0")
ROOT_HALF = float.fromhex("0x1.6a09e667f3bcdp-1")
CHUNK = 4096  # values computed at a time; elementwise, so no bit depends on it
EXP_FLOOR = -708.0  # below it exp would be subnormal: defined as 0

LOG_SERIES = tuple(2.0 / (2 * n + 1) for n in range(1, 11))  # 2/3, 2/5, ... 2/21
EXP_SERIES = tuple(1.0 / math.factorial(n) for n in range(2, 14))  # 1/2!, 1/3!, ... 1/13!


def log(x: Floats) -> Floats:
    """Natural logarithm of float64 `x` > 0 (normal numbers), any shape.

    x = 2^k * m with sqrt(1/2) <= m < sqrt(2); f = m - 1, s = f / (2 + f), z = s * s, h = f * f / 2;
    R = z * (2/3 + z * (2/5 + ...)): log(m) = 2 * atanh(s) = 2 * s + s * R.
    Since 2 * s = f - s * f and s * f = h - s * h:
    log(x) = k * LN2_HIGH - ((h - (s * (h + R) + k * LN2_LOW)) - f).
    """
    fraction, exponent = np.frexp(x)
    low = fraction < ROOT_HALF
    f = np.where(low, fraction + fraction, fraction) - 1.0
    k = exponent.astype(np.float64) - low
    s = f / (2.0 + f)
    z = s * s
    h = 0.5 * f * f
    remainder = _horner(z, LOG_SERIES) * z
    result: Floats = k * LN2_HIGH - ((h - (s * (h + remainder) + k * LN2_LOW)) - f)
    return result


def exp(x: Floats) -> Floats:
    """e to the power of float64 `x` [n] <= 709; exactly 0 where x < -708 (and for -inf).

    k = rint(x / ln 2), r = (x - k * LN2_HIGH) - k * LN2_LOW;
    exp(x) = 2^k * (1 + (r + r * r * (1/2! + r * (1/3! + ... r * 1/13!)))).
    """
    result = np.empty_like(x)
    for start in range(0, len(x), CHUNK):  # small pieces stay in the nearest cache
        result[start : start + CHUNK] = _exp(x[start : start + CHUNK])
    return result


def _exp(x: Floats) -> Floats:
    clipped = np.maximum(x, EXP_FLOOR)
    k = np.rint(clipped * INVERSE_LN2)
    r = (clipped - k * LN2_HIGH) - k * LN2_LOW
    power_of_two = ((k.astype(np.int64) + 1023) << 52).view(np.float64)
    result = (1.0 + (r + r * r * _horner(r, EXP_SERIES))) * power_of_two
    result[x < EXP_FLOOR] = 0.0
    return result


def _horner(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    """c[0] + x * (c[1] + x * (...)), innermost first: a product, then a sum, per coefficient."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result *= x
        result += coefficient
    return result


def block_sum(x: Floats, ids: Ids | None = None) -> float:
    """Sum of float64 `x` over the vocabulary: blocks of 1024 ids, left to right inside a block,
    then the block sums left to right. `x` holds ids 0 .. n-1, or the given ascending ids while all
    others count as zero; x >= 0, so that adding an absent zero changes no bit."""
    if ids is not None:
        sparse = np.zeros(int(ids[-1]) // BLOCK + 1)
        np.add.at(sparse, ids // BLOCK, x)  # one addition at a time, in order
        return left_to_right(sparse)
    blocks = -(-len(x) // BLOCK)
    padded = np.zeros(blocks * BLOCK, dtype=np.float64)
    padded[: len(x)] = x
    sums = np.add.accumulate(padded.reshape(blocks, BLOCK), axis=1)[:, -1]
    return left_to_right(sums)


def left_to_right(x: Floats) -> float:
    """Sum of float64 `x` [n >= 1] in order, one addition at a time."""
    return float(np.add.accumulate(x)[-1])
