"""Sampled tokens against closed forms, for every combination of filters: chi-square with stated
power. A test at level 1e-4 over `DRAWS` draws finds a law that is off by a total variation of 0.1
with a chance of at least 0.99; the closed forms are loops of tests/marginals.py."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import Any

import numpy as np
import pytest

from foreword.audit.chi_square import goodness
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu import native_rows
from foreword.protocols import Sampler
from foreword.sample.arithmetic import ArithmeticSampler
from foreword.sample.compiled import CompiledSampler
from foreword.sample.sampler import GumbelSampler
from foreword.types import Request, SamplingParams
from marginals import chances, power, tilted

ALPHA = 1e-4
DRAWS = 1500
VARIATION, POWER = 0.1, 0.99
P = (0.05, 0.24, 0.0, 0.16, 0.3, 0.01, 0.11, 0.08, 0.03, 0.02)
COMBINATIONS = [
    {"temperature": temperature, **top_k, **top_p, **min_p, **typical_p}
    for temperature, top_k, top_p, min_p, typical_p in product(
        (0.6, 1.0, 1.7),
        ({}, {"top_k": 5}),
        ({}, {"top_p": 0.85}),
        ({}, {"min_p": 0.15}),
        ({}, {"typical_p": 0.7}),
    )
]


def row() -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(P)).astype(np.float32)


def samplers() -> dict[str, Sampler]:
    found: dict[str, Sampler] = {"gumbel": GumbelSampler(), "arithmetic": ArithmeticSampler()}
    with suppress(KernelUnavailable):
        found["compiled"] = CompiledSampler(native_rows())
    return found


SAMPLERS = samplers()


def draws(name: str, fields: dict[str, Any]) -> np.ndarray:
    """Counts per id of DRAWS tokens: Gumbel's of 40 seeds at 50 positions each; arithmetic's of as
    many seeds at their first position."""
    sampler = SAMPLERS[name]
    kind = "arithmetic" if name == "arithmetic" else "gumbel"
    params = SamplingParams(**fields, sampler=kind).resolve({})
    positions = 1 if name == "arithmetic" else 50
    counts = np.zeros(len(P), dtype=np.int64)
    values = row()
    for seed in range(DRAWS // positions):
        state = sampler.begin(Request("", (1,), params, 1000 + seed))
        for position in range(positions):
            counts[sampler.choose(values, params, state, position).token_id] += 1
    return counts


def cases() -> list[Any]:
    """The compiled chain everywhere; the others, which take longer, at one temperature in CI."""
    found = []
    for name, fields in product(SAMPLERS, COMBINATIONS):
        quick = name == "compiled" or fields["temperature"] == 0.6
        marks = () if quick else pytest.mark.slow
        found.append(pytest.param(name, fields, marks=marks, id=f"{name}-{fields}"))
    return found


@pytest.mark.parametrize(("name", "fields"), cases())
def test_marginals_are_the_closed_form(name: str, fields: dict[str, Any]) -> None:
    expected = chances(P, **fields)
    counts = draws(name, fields)
    assert goodness(counts, expected).p_value > ALPHA
    assert power(expected, tilted(expected, VARIATION), DRAWS, ALPHA) >= POWER


def test_closed_forms_are_what_the_words_say() -> None:
    p = (0.4, 0.3, 0.2, 0.06, 0.04)
    assert chances(p, top_k=3) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0, 0])
    assert chances(p, top_p=0.69) == pytest.approx([4 / 7, 3 / 7, 0, 0, 0])
    assert chances(p, min_p=0.25) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0, 0])
    assert chances(p, top_k=2, top_p=0.5) == pytest.approx([1, 0, 0, 0, 0])
    squares = np.array(p) ** 2
    assert chances(p, temperature=0.5) == pytest.approx(squares / squares.sum())
    assert len({tuple(chances(P, **fields)) for fields in COMBINATIONS}) > 10


@pytest.mark.parametrize("fields", COMBINATIONS, ids=str)
def test_a_filter_left_out_would_be_found(fields: dict[str, Any]) -> None:
    """Drawn without one of its filters, or at temperature 1, the counts are refused, where the
    closed form differs by the variation that the power is stated for."""
    for name in fields:
        less = {key: value for key, value in fields.items() if key != name}
        right, wrong = chances(P, **fields), chances(P, **less)
        if 0.5 * np.abs(right - wrong).sum() < VARIATION:
            continue
        counts = np.random.default_rng(1).multinomial(DRAWS, wrong)
        assert goodness(counts, right).p_value < ALPHA, name


def test_stated_power_is_what_simulation_finds() -> None:
    """1,000 histograms of a law 0.08 off: the share that is refused, within 4 standard errors."""
    null = chances(P, top_k=6)
    true = tilted(null, 0.08)
    stated = power(null, true, 800, ALPHA)
    assert 0.2 < stated < 0.8
    random = np.random.default_rng(5)
    refused = [goodness(random.multinomial(800, true), null).p_value < ALPHA for _ in range(1000)]
    assert abs(np.mean(refused) - stated) < 4 * np.sqrt(0.25 / 1000)
