"""The cost curve: steps kept, never falling, unmoved by outliers; and what it is measured on."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting import TapeModel, tape_store
from foreword.cost import CostCurve, measure
from foreword.pace import MeasuredPace

POINTS = {1: 1.0, 2: 1.1, 16: 2.0, 17: 3.0, 32: 4.0}


def test_the_overhead_of_a_step_is_known_from_the_first_one():
    pace = MeasuredPace(CostCurve({1: 0.01}))
    pace.stepped([], 0.002)
    assert pace.overhead == pytest.approx(0.002, rel=0.05)


def test_between_points_the_cost_is_interpolated_and_steps_stay():
    table = CostCurve(POINTS).table(40)
    assert len(table) >= 41
    assert table[0] == table[1] == 1.0
    assert table[9] == pytest.approx(1.55)
    assert (table[16], table[17]) == (2.0, 3.0)
    assert table[40] > table[32]


@settings(max_examples=60)
@given(
    points=st.dictionaries(st.integers(1, 64), st.floats(1e-3, 1.0), min_size=1, max_size=12),
    seen=st.lists(st.tuples(st.integers(1, 80), st.floats(1e-4, 10.0)), max_size=40),
)
def test_the_curve_never_falls_and_stays_positive(points, seen):
    curve = CostCurve(points)
    for rows, seconds in seen:
        curve.observe(rows, 0, 0, seconds)
    table = curve.table(100)
    assert all(0 < low <= high * (1 + 1e-9) for low, high in pairwise(table))


def test_context_is_charged_once_for_a_sequence_and_once_for_each_row():
    curve = CostCurve({1: 1.0, 8: 1.0}, context_cost=1e-3, row_context_cost=1e-4)
    assert curve.seconds(8, keys=100, row_keys=800) == pytest.approx(1.0 + 0.1 + 0.08)


def test_observations_move_their_width_and_outliers_do_not():
    """Passes of 8 rows really take 3, not the 1.55 that interpolation says; every tenth is 20 times
    late."""
    curve, chance = CostCurve(POINTS), random.Random(0)
    for number in range(3000):
        for rows, true in ((1, 1.0), (8, 1.9), (16, 2.0)):
            late = 20.0 if number % 10 == 0 else 1.0
            curve.observe(rows, 0, 0, true * late * chance.uniform(0.98, 1.02))
    assert curve.seconds(8) == pytest.approx(1.9, rel=0.06)
    assert curve.seconds(16) == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize("measured", [2e-4, 4e-3])
def test_the_price_of_context_is_learned_from_passes_that_read_more(measured):
    """A key really costs 1e-3 of a pass; at first that is measured five times too low or high."""
    curve, chance = CostCurve({1: 1.0, 8: 1.5}, context_cost=measured), random.Random(0)
    for _ in range(4000):
        keys = chance.choice((50, 200, 900))
        rows, base = chance.choice(((1, 1.0), (8, 1.5)))
        curve.observe(rows, keys, rows * keys, (base + 1e-3 * keys) * chance.uniform(0.97, 1.03))
    assert curve.seconds(1, 900) == pytest.approx(1.9, rel=0.1)
    assert curve.seconds(1, 50) == pytest.approx(1.05, rel=0.1)
    assert curve.seconds(8, 50) == pytest.approx(1.55, rel=0.1)


def test_a_machine_that_slows_down_slows_all_widths():
    """Only one row at a time is seen, and it takes twice as long: wide passes are expected to."""
    curve = CostCurve(POINTS)
    before = curve.seconds(32) / curve.seconds(1)
    for _ in range(60):
        curve.observe(1, 0, 0, 2.0)
    assert curve.seconds(1) == pytest.approx(2.0, rel=0.05)
    assert curve.seconds(32) / curve.seconds(1) == pytest.approx(before, rel=0.25)


def test_measuring_leaves_the_store_as_it_was():
    model, store = TapeModel(), tape_store(400)
    free = store.num_free_tokens
    curve = measure(model, store, most=48, positions=500, seconds=0.05)
    store.check()
    assert store.num_free_tokens == free
    assert {1, 16} <= set(model.num_rows)
    assert max(model.num_rows) <= 48
    assert curve.seconds(1) > 0


def test_a_small_store_is_measured_as_far_as_it_goes():
    model, store = TapeModel(), tape_store(12)
    measure(model, store, most=48, positions=500, seconds=0.05)
    assert max(model.num_rows) <= 12


def test_what_a_wide_pass_does_to_the_next_is_not_the_price_of_a_narrow_one():
    """After 16 rows one row takes 1.5, else 1."""
    curve, before = CostCurve(POINTS), 0
    for number in range(4000):
        rows = 16 if number % 3 == 0 else 1
        curve.observe(rows, 0, 0, 2.0 if rows == 16 else 1.5 if before == 16 else 1.0)
        before = rows
    assert curve.seconds(1) == pytest.approx(1.0, rel=0.06)
    assert curve.seconds(1, before=16) == pytest.approx(1.5, rel=0.06)
    assert curve.seconds(16) == pytest.approx(2.0, rel=0.06)
    nothing, *wider = curve.aftermath(1, 15)
    assert nothing == 0.0
    assert wider[-1] == pytest.approx(0.5, abs=0.06)
    assert wider[0] == 0.0  # nobody saw two rows
