"""Are these counts draws from that law? Pearson's chi-square, and how small a fault it would see.

Needs nothing but the standard library and numpy: the tail of the chi-square law is the regularised
incomplete gamma function (series below, continued fraction above), that of the noncentral one a
Poisson mixture of them. Knows no models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LEAST_EXPECTED = 5.0  # outcomes expected less often share one cell
TINY = 1e-300


@dataclass(frozen=True, slots=True)
class Fit:
    """How well counts fit: `p_value`, the chance of so large a statistic if the law is right."""

    statistic: float
    freedom: int
    num_draws: int

    @property
    def p_value(self) -> float:
        if self.freedom == 0:
            return 0.0 if math.isinf(self.statistic) else 1.0
        return tail(self.statistic, self.freedom)


def goodness(counts: npt.NDArray[np.int64], chances: npt.NDArray[np.float64]) -> Fit:
    """`counts` of outcomes whose `chances` sum to 1; rare ones are pooled. An outcome that cannot
    be makes the statistic infinite."""
    draws = int(counts.sum())
    expected = draws * chances
    impossible = bool(counts[chances == 0.0].any())
    often = expected >= LEAST_EXPECTED
    cells = [*zip(counts[often].tolist(), expected[often].tolist(), strict=True)]
    rare = float(expected[~often].sum())
    if rare >= LEAST_EXPECTED or (rare > 0.0 and not cells):
        cells.append((int(counts[~often].sum()), rare))
    elif rare > 0.0:  # too little for a cell of its own
        place = min(range(len(cells)), key=lambda cell: cells[cell][1])
        found, wanted = cells[place]
        cells[place] = (found + int(counts[~often].sum()), wanted + rare)
    statistic = sum((found - wanted) ** 2 / wanted for found, wanted in cells)
    return Fit(math.inf if impossible else statistic, len(cells) - 1, draws)


def together(fits: list[Fit]) -> Fit:
    """Independent fits as one."""
    return Fit(
        sum(fit.statistic for fit in fits),
        sum(fit.freedom for fit in fits),
        sum(fit.num_draws for fit in fits),
    )


def visible_variation(draws: int, freedom: int, alpha: float, power: float) -> float:
    """The total variation from which on a test at level `alpha` finds a fault with at least this
    power: a shift d has sum d^2 / p >= (sum |d|)^2, so its noncentrality is at least draws * (2
    TV)^2. 1 where nothing can be seen."""
    if freedom == 0 or draws == 0:
        return 1.0
    limit = critical(alpha, freedom)
    low, high = 0.0, 1.0
    while power_at(high, limit, freedom) < power:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if power_at(middle, limit, freedom) < power else (low, middle)
    return min(1.0, math.sqrt(high / draws) / 2)


def critical(alpha: float, freedom: int) -> float:
    """The statistic whose tail is `alpha`."""
    low, high = 0.0, float(freedom)
    while tail(high, freedom) > alpha:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > alpha else (low, middle)
    return high


def power_at(noncentrality: float, limit: float, freedom: int) -> float:
    """The chance that a noncentral chi-square is above `limit`: a mixture of central ones with
    freedom + 2 j, j Poisson of mean noncentrality / 2."""
    mean, x = noncentrality / 2, limit / 2
    first = max(0, int(mean - 10 * math.sqrt(mean) - 10))
    shape = freedom / 2 + first
    above = upper_gamma(shape, x)
    total = 0.0
    for j in range(first, int(mean + 10 * math.sqrt(mean) + 20)):
        weight = math.exp(j * math.log(mean) - mean - math.lgamma(j + 1)) if mean else float(j == 0)
        total += weight * above
        above = min(1.0, above + math.exp(shape * math.log(x) - x - math.lgamma(shape + 1)))
        shape += 1.0
    return total


def tail(statistic: float, freedom: int) -> float:
    """The chance that a chi-square with `freedom` > 0 is above `statistic`."""
    return 0.0 if math.isinf(statistic) else upper_gamma(freedom / 2, statistic / 2)


def upper_gamma(shape: float, x: float) -> float:
    """Regularised upper incomplete gamma function Q(shape, x), shape > 0, x >= 0."""
    if x <= 0.0:
        return 1.0
    front = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1.0:
        term = total = 1.0 / shape
        step = shape
        while term > total * 1e-16:
            step += 1.0
            term *= x / step
            total += term
        return max(0.0, 1.0 - front * total)
    b = x + 1.0 - shape  # modified Lentz
    c, d = 1.0 / TINY, 1.0 / b
    fraction = d
    for count in range(1, 10_000):
        a = count * (shape - count)
        b += 2.0
        d = 1.0 / (_apart(a * d + b))
        c = _apart(b + a / c)
        fraction *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return front * fraction


def _apart(value: float) -> float:
    return value if abs(value) > TINY else TINY


def expected_variation(draws: int, chances: npt.NDArray[np.float64]) -> float:
    """Mean total variation between a law and the frequencies of `draws` draws from it: half the sum
    of the binomials' mean deviations (De Moivre: 2 m (1 - p) P(X = m), m = [n p] + 1)."""
    total = 0.0
    for p in chances[(chances > 0.0) & (chances < 1.0)].tolist():
        m = min(int(draws * p) + 1, draws)
        log = math.lgamma(draws + 1) - math.lgamma(m + 1) - math.lgamma(draws - m + 1)
        log += m * math.log(p) + (draws - m) * math.log1p(-p)
        total += 2 * m * (1 - p) * math.exp(log)
    return total / draws / 2
