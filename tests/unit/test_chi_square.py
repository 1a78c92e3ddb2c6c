"""The audit's statistics against simulation, and against values every table prints."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foreword.audit.chi_square import (
    critical,
    expected_variation,
    goodness,
    power_at,
    tail,
    together,
    upper_gamma,
    visible_variation,
)


@pytest.mark.parametrize(
    ("statistic", "freedom", "chance"),
    [
        (3.841459, 1, 0.05),
        (5.991465, 2, 0.05),
        (18.467, 4, 0.001),
        (149.449, 100, 0.001),
        (77.929, 100, 0.95),
        (0.0, 3, 1.0),
        (math.inf, 3, 0.0),
    ],
)
def test_tails_as_in_the_tables(statistic: float, freedom: int, chance: float):
    assert tail(statistic, freedom) == pytest.approx(chance, abs=2e-5)


@pytest.mark.parametrize("statistic", [0.1, 1.0, 9.0, 40.0, 90.0])
def test_two_degrees_are_an_exponential(statistic: float):
    assert tail(statistic, 2) == pytest.approx(math.exp(-statistic / 2), rel=1e-12)


def test_both_branches_of_the_gamma_function_meet():
    """Q(a + 1, x) = Q(a, x) + x^a e^-x / Gamma(a + 1), across x = a + 1."""
    for shape in (0.5, 3.0, 20.0, 200.0):
        for x in (shape * 0.5, shape, shape + 0.999, shape + 1.001, shape * 1.5):
            step = math.exp(shape * math.log(x) - x - math.lgamma(shape + 1))
            assert upper_gamma(shape + 1, x) == pytest.approx(
                upper_gamma(shape, x) + step, abs=1e-12
            )


@pytest.mark.parametrize(("freedom", "shift"), [(1, 10.0), (5, 10.0), (40, 60.0)])
def test_power_by_simulation(freedom: int, shift: float):
    limit = critical(0.01, freedom)
    drawn = np.random.default_rng(1).noncentral_chisquare(freedom, shift, 200_000)
    assert power_at(shift, limit, freedom) == pytest.approx((drawn > limit).mean(), abs=0.005)


def test_the_stated_power_is_kept():
    """A fault of just the visible total variation, of the shape that is hardest to see (in
    proportion to the law), is found about as often as stated; half of it mostly is not."""
    rng = np.random.default_rng(2)
    draws, cells = 2000, 8
    law = np.full(cells, 1 / cells)
    visible = visible_variation(draws, cells - 1, 1e-3, 0.9)
    shape = np.array([1.0, -1.0] * (cells // 2))
    found = {}
    for part in (1.0, 0.5):
        shifted = law + shape * part * visible * 2 / cells
        counts = rng.multinomial(draws, shifted, 2000)
        found[part] = np.mean([goodness(one, law).p_value < 1e-3 for one in counts])
    assert found[1.0] == pytest.approx(0.9, abs=0.03)
    assert found[0.5] < 0.3


def test_false_alarms_are_as_rare_as_stated():
    rng = np.random.default_rng(3)
    law = np.array([0.5, 0.3, 0.1, 0.05, 0.02, 0.02, 0.01])
    fits = [goodness(one, law) for one in rng.multinomial(400, law, 4000)]
    assert np.mean([fit.p_value < 0.05 for fit in fits]) == pytest.approx(0.05, abs=0.015)
    assert all(fit.num_draws == 400 for fit in fits)
    assert together(fits[:3]).freedom == sum(fit.freedom for fit in fits[:3])


def test_rare_outcomes_share_a_cell_and_impossible_ones_are_faults():
    law = np.array([0.9, 0.04, 0.03, 0.03, 0.0])
    fit = goodness(np.array([90, 4, 3, 3, 0]), law)
    assert (fit.freedom, fit.statistic) == (1, 0.0)
    assert goodness(np.array([90, 4, 3, 2, 1]), law).p_value == 0.0
    lonely = goodness(np.array([100, 0]), np.array([0.99, 0.01]))  # one outcome expected: no cell
    assert (lonely.freedom, lonely.p_value) == (0, 1.0)


def test_chance_variation_by_simulation():
    law = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = np.random.default_rng(4).multinomial(200, law, 20_000) / 200
    mean = 0.5 * np.abs(drawn - law).sum(1).mean()
    assert expected_variation(200, law) == pytest.approx(mean, rel=0.02)
    assert expected_variation(200, np.array([1.0, 0.0])) == 0.0
