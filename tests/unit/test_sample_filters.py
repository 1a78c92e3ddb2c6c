"""top-k, top-p and min-p against a brute-force reading of their definitions, and cases V08, V34."""

from __future__ import annotations

import math

import numpy as np
import pytest

from foreword.errors import RequestError
from foreword.sample import filters, portable
from foreword.types import SamplingParams


def logits(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities)).astype(np.float32)


def keep(row, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    ids = filters.kept(row, float(row.max()), temperature, top_k, top_p, min_p)
    return list(range(len(row))) if ids is None else ids.tolist()


def brute_force(row, temperature, top_k, top_p, min_p) -> list[int]:
    """The module docstring, word by word, with full sorts and plain sums."""
    values = row.astype(np.float64)
    peak = values.max()
    ids = sorted(np.flatnonzero(values > -np.inf).tolist(), key=lambda v: (-values[v], v))
    if top_k > 0:
        ids = ids[:top_k]
    with np.errstate(over="ignore"):
        weight = portable.exp((values - peak) / temperature)
    if top_p < 1.0:
        dense = np.zeros(len(row))
        dense[ids] = weight[ids]
        total = portable.block_sum(dense)
        running, prefix = 0.0, []
        for token in ids:
            prefix.append(token)
            running += weight[token] / total
            if running >= top_p:
                break
        ids = prefix
    return sorted(token for token in ids if min_p == 0.0 or weight[token] >= min_p)


@pytest.mark.parametrize(
    ("row", "settings", "expected"),
    [
        (logits(0.5, 0.25, 0.25), {"top_p": 0.5}, [0]),
        (logits(0.25, 0.5, 0.25), {"top_p": 0.6}, [0, 1]),  # the tie goes to the lowest id
        (np.zeros(4, np.float32), {"top_p": 0.5}, [0, 1]),  # 1/4 + 1/4 reaches 1/2 exactly
        (np.zeros(4, np.float32), {"top_p": 0.5000001}, [0, 1, 2]),
        (np.zeros(4, np.float32), {"top_p": 0.25}, [0]),
        (np.array([3, 2, 1], np.float32), {"temperature": 0.5, "top_p": 0.8}, [0]),
        (np.array([3, 2, 1], np.float32), {"temperature": 1.0, "top_p": 0.8}, [0, 1]),
        (logits(0.5, 0.3, 0.2), {"top_p": 1.0}, [0, 1, 2]),
        (logits(0.5, 0.3, 0.2), {"top_p": 1e-300}, [0]),
        (logits(0.2, 0.5, 0.3), {"top_k": 1}, [1]),
        (logits(0.2, 0.5, 0.3), {"top_k": 2}, [1, 2]),
        (np.zeros(5, np.float32), {"top_k": 3}, [0, 1, 2]),  # exactly k among equals
        (logits(0.2, 0.5, 0.3), {"top_k": 0}, [0, 1, 2]),
        (logits(0.2, 0.5, 0.3), {"top_k": -1}, [0, 1, 2]),
        (logits(0.2, 0.5, 0.3), {"top_k": 3}, [0, 1, 2]),
        (logits(0.2, 0.5, 0.3), {"top_k": 9999999}, [0, 1, 2]),
        # top-p renormalises over what top-k kept: .4/.7 = .571 reaches .55, .4 alone would not
        (logits(0.4, 0.3, 0.2, 0.1), {"top_k": 2, "top_p": 0.55}, [0]),
        (logits(0.4, 0.3, 0.2, 0.1), {"top_p": 0.55}, [0, 1]),
        (logits(0.4, 0.3, 0.2, 0.1), {"top_k": 2, "top_p": 0.9}, [0, 1]),
    ],
)
def test_v34_table(row, settings, expected) -> None:
    assert keep(row, **settings) == expected


def test_v34_top_p_zero_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="top_p"):
        SamplingParams(top_p=0.0)


def test_v08_min_p_threshold_is_relative_to_the_highest() -> None:
    """min_p .3 of p = (.5, .3, .15, .05): the threshold is .15; token 3 is impossible, 0 and 1
    stay. The comparison is >= on exp(logit - highest), where token 2 may round to either side."""
    kept = keep(logits(0.5, 0.3, 0.15, 0.05), min_p=0.3)
    assert set(kept) - {2} == {0, 1}


@pytest.mark.parametrize(
    ("row", "min_p", "expected"),
    [
        (np.zeros(3, np.float32), 1.0, [0, 1, 2]),
        (logits(0.2, 0.5, 0.3), 1.0, [1]),
        (logits(0.2, 0.5, 0.3), 0.5, [1, 2]),
        (logits(0.2, 0.5, 0.3), 1e-300, [0, 1, 2]),
        (np.array([0.0, -np.inf, -1000.0], np.float32), 1e-300, [0]),
    ],
)
def test_min_p(row, min_p, expected) -> None:
    assert keep(row, min_p=min_p) == expected


def test_min_p_threshold_is_not_moved_by_the_other_filters() -> None:
    row = logits(0.4, 0.3, 0.2, 0.1)
    for other in ({}, {"top_k": 3}, {"top_p": 0.85}, {"top_k": 3, "top_p": 0.95}):
        assert keep(row, min_p=0.6, **other) == [0, 1]


def test_masked_ids_are_never_kept() -> None:
    row = np.array([-np.inf, 1.0, -np.inf, 0.0], dtype=np.float32)
    assert keep(row, top_k=3) == [1, 3]
    assert keep(row, top_p=0.9999999) == [1, 3]
    assert keep(row, min_p=1e-9) == [1, 3]
    assert keep(row, top_k=3, top_p=0.99, min_p=1e-9) == [1, 3]


@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-7, 1e-5])
def test_v35_tiny_temperatures_keep_the_highest(temperature: float) -> None:
    row = np.array([-1e4, 19.999, 20.0, 1.0, -np.inf], dtype=np.float32)
    for settings in ({"top_p": 0.9}, {"top_k": 3, "top_p": 0.5}, {"min_p": 0.1}):
        assert keep(row, temperature, **settings) == [2]


def test_v35_high_temperature_with_large_logits() -> None:
    row = np.array([1e4, 1e4 - 1, -1e4, 9e3], dtype=np.float32)
    assert keep(row, 2.0, top_p=0.7) == [0, 1]
    assert keep(row, 2.0, min_p=0.5) == [0, 1]


def random_row(rng: np.random.Generator, size: int) -> np.ndarray:
    row = (rng.normal(0, rng.choice([0.01, 1.0, 4.0]), size)).astype(np.float32)
    if rng.random() < 0.4:
        row = np.round(row * 2) / 2  # many ties
    if rng.random() < 0.3:
        row[rng.random(size) < 0.5] = -np.inf
    if rng.random() < 0.2:
        row[rng.integers(0, size, 2)] = np.float32(-0.0)
    row[rng.integers(0, size)] = rng.choice([0.0, 3.0, 12.0])
    return row


@pytest.mark.parametrize("size", [1, 2, 17, 1500])
def test_filters_equal_brute_force(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(120 if size > 100 else 400):
        row = random_row(rng, size)
        temperature = float(rng.choice([1e-3, 0.5, 1.0, 1.7, 40.0]))
        top_k = int(rng.choice([0, 1, 2, 5, 50, 5000]))
        top_p = float(rng.choice([1.0, 0.999999, 0.95, 0.5, 0.1, 1e-9]))
        min_p = float(rng.choice([0.0, 0.0, 0.05, 0.5, 1.0]))
        settings = (temperature, top_k, top_p, min_p)
        kept = keep(row, *settings)
        if (top_k <= 0 or top_k >= size) and top_p == 1.0 and min_p == 0.0:
            assert kept == list(range(size))
        else:
            assert kept == brute_force(row, *settings), settings
            assert int(row.argmax()) in kept


@pytest.mark.parametrize("equal", [3, 10, 49, 1000])
def test_top_p_at_exact_running_sums(equal: int) -> None:
    """`equal` ids of one probability: `top_p` = j / equal sits on the boundary, where the shortcut
    must hand over to the exact sums. The brute force decides which side rounding falls on."""
    row = np.full(2000, -np.inf, dtype=np.float32)
    row[np.random.default_rng(equal).choice(2000, equal, replace=False)] = 1.5
    for j in range(1, equal, max(1, equal // 25)):
        for top_p in (j / equal, math.nextafter(j / equal, 0.0), math.nextafter(j / equal, 1.0)):
            assert keep(row, 1.0, 0, top_p, 0.0) == brute_force(row, 1.0, 0, top_p, 0.0)


def test_the_shortcut_and_the_exact_sums_both_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    exact = filters.exact_cut
    monkeypatch.setattr(filters, "exact_cut", lambda *given: calls.append(1) or exact(*given))
    keep(logits(0.5, 0.3, 0.2), top_p=0.6)
    assert not calls
    keep(np.zeros(4, np.float32), top_p=0.5)
    assert calls


def test_descending_is_the_stable_order() -> None:
    rng = np.random.default_rng(5)
    for size in (1, 2, 100, 3000):
        row = np.round(rng.normal(0, 3, size)).astype(np.float32)
        row[::7] = np.float32(-0.0)
        row[::11] = -np.inf
        expected = sorted(range(size), key=lambda token, row=row: (-row[token], token))
        assert filters.descending(row).tolist() == expected


def test_rough_total_is_well_within_its_allowance() -> None:
    rng = np.random.default_rng(6)
    for spread in (0.01, 1.0, 5.0, 30.0, 1e4):
        for temperature in (1e-6, 0.1, 1.0, 10.0):
            row = rng.normal(0, spread, 20000).astype(np.float32)
            peak = float(row.max())
            exact = filters.exact_total(row, None, peak, temperature)
            rough = filters.rough_total(row, peak, temperature)
            assert abs(rough / exact - 1.0) < filters.ROUGH / 5
