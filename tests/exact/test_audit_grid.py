"""The covering array covers, is short, and its proof can fail."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foreword.audit.grid import all_pairs, covering_array, uncovered
from foreword.audit.settings import QUICK, THOROUGH, Setting

widths = st.lists(st.integers(1, 6), min_size=1, max_size=7)


@given(widths)
def test_every_pair_of_any_axes_meets(numbers: list[int]):
    axes = {f"axis {place}": tuple(range(width)) for place, width in enumerate(numbers)}
    rows = covering_array(axes)
    assert uncovered(axes, rows) == []
    assert rows == covering_array(axes), "the same axes must give the same rows"
    least = sorted(numbers)[-1] * (sorted(numbers)[-2] if len(numbers) > 1 else 1)
    assert least <= len(rows) <= 2 * least + 6


def test_the_axes_of_the_audit():
    """The longest two axes are met 16 x 5 times: no array can be shorter."""
    rows = covering_array(THOROUGH)
    assert 80 <= len(rows) <= 90
    assert uncovered(THOROUGH, rows) == []
    assert len({str(Setting.of(row)) for row in rows}) == len(rows)
    quick = covering_array(QUICK)
    assert uncovered(QUICK, quick) == []
    assert len(quick) <= 24


def test_the_proof_sees_a_missing_row():
    rows = covering_array(THOROUGH)
    lost = [pair for place in range(20) for pair in uncovered(THOROUGH, rows[place + 1 :])]
    assert lost, "the first rows cover pairs that no later row has"
    assert uncovered(THOROUGH, []) == list(all_pairs(THOROUGH))


def test_the_first_rows_cover_most():
    rows = covering_array(THOROUGH)
    total = len(list(all_pairs(THOROUGH)))
    assert len(uncovered(THOROUGH, rows[:10])) < 0.6 * total
    assert len(uncovered(THOROUGH, rows[-10:])) > len(uncovered(THOROUGH, rows[:10]))
