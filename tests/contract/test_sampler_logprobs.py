"""Log-probabilities of the sampler: processed ones by their definition, and those of given tokens,
the prompt's; of the specification and, where the extension is built, of the compiled chain."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from foreword.errors import KernelUnavailable, NonFiniteLogits
from foreword.kernels.cpu import native_rows
from foreword.sample import filters, logprobs
from foreword.sample.compiled import CompiledSampler
from foreword.sample.rows import NumpyRows
from foreword.sample.sampler import GumbelSampler, SamplerState, make
from foreword.types import SamplingParams


def samplers() -> dict[str, GumbelSampler]:
    try:
        return {"numpy": make(), "compiled": CompiledSampler(native_rows())}
    except KernelUnavailable:
        return {"numpy": make()}


SAMPLERS = samplers()


@pytest.fixture(params=SAMPLERS)
def sampler(request: pytest.FixtureRequest) -> GumbelSampler:
    return SAMPLERS[request.param]


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.4},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 2.5, "top_k": 17},
    {"temperature": 0.8, "top_p": 0.6},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1e-6},
]


def make_row(seed: int, size: int = 1300) -> np.ndarray:
    row = np.random.default_rng(seed).normal(0, 2, size).astype(np.float32)
    row[::11] = -np.inf
    row[5] = row[700]  # a tie
    return row


def choice(sampler: GumbelSampler, row: np.ndarray, count: int, mode: str, **fields: Any) -> Any:
    params = SamplingParams(logprobs=count, logprobs_mode=mode, **fields).resolve({})
    return sampler.choose(row, params, SamplerState(7), 3)


@pytest.mark.parametrize("fields", SETTINGS)
def test_v40_processed_logprobs_against_forty_digits(
    sampler: GumbelSampler, fields: dict[str, Any]
) -> None:
    """V40: log-softmax over what the filters keep, at the temperature; the token is the same as
    without logprobs, and both samplers have the same bits."""
    for seed in range(3):
        row = make_row(seed)
        found = choice(sampler, row, 20, "processed", **fields)
        plain = SamplingParams(**fields).resolve({})
        assert found.token_id == sampler.choose(row, plain, SamplerState(7), 3).token_id
        cold = fields["temperature"] == 0.0
        temperature = 1.0 if cold else fields["temperature"]
        kept = None
        if not cold:
            assert plain.top_k is not None
            assert plain.top_p is not None
            assert plain.min_p is not None
            kept = filters.kept(
                row, float(row.max()), temperature, plain.top_k, plain.top_p, plain.min_p
            )
        ids = np.flatnonzero(row > -np.inf) if kept is None else kept
        with mpmath.workdps(40):
            scaled = [mpmath.mpf(float(value)) / mpmath.mpf(temperature) for value in row[ids]]
            total = mpmath.log(mpmath.fsum(mpmath.exp(value) for value in scaled))
            right = {
                int(token): float(value - total) for token, value in zip(ids, scaled, strict=True)
            }
        order = sorted(right, key=lambda token: (-row[token], token))
        assert [token for token, _ in found.logprobs.top] == order[:20]
        pairs = [(found.token_id, found.logprobs.logprob), *found.logprobs.top]
        for token, logprob in pairs:
            assert math.isclose(logprob, right[token], rel_tol=1e-12, abs_tol=1e-14)
        assert found == choice(SAMPLERS["numpy"], row, 20, "processed", **fields)
        assert choice(sampler, row, 0, "processed", **fields).logprobs.top == ()


def test_raw_and_processed_agree_where_nothing_is_changed(sampler: GumbelSampler) -> None:
    row = make_row(9)
    for temperature in (0.0, 1.0):
        raw, processed = (
            choice(sampler, row, 5, mode, temperature=temperature) for mode in ("raw", "processed")
        )
        assert raw == processed


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_scores_of_given_tokens_are_raw_logprobs_bit_for_bit(
    sampler: GumbelSampler, count: int
) -> None:
    """Masked tokens are -inf, ties go to the lowest id, a short row lists all it has; a view with
    strides gives the same."""
    rows = np.stack([make_row(seed) for seed in range(6)])
    rows[4] = -np.inf
    rows[4, 17], rows[4, 3] = -5.0, -5.0
    tokens = [5, 11, 700, 1299, 17, 3]
    found = sampler.score(rows, tokens, count)
    for row, token, entry in zip(rows, tokens, found, strict=True):
        assert entry == logprobs.raw(row, float(row.max()), token, count)
    assert found[1].logprob == -math.inf
    assert len(found[4].top) == min(count, 2)
    wide = np.zeros((12, 1300), dtype=np.float32)
    wide[::2] = rows
    assert sampler.score(wide[::2], tokens, count) == found
    short = rows[:1, :9]
    assert sampler.score(short, [0], count) == [
        logprobs.raw(short[0], float(short.max()), 0, count)
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_row_is_an_error_that_says_where(sampler: GumbelSampler, bad: float) -> None:
    rows = np.stack([make_row(seed) for seed in range(3)])
    rows[1, : 1300 if bad == -np.inf else 1] = bad
    with pytest.raises(NonFiniteLogits, match="inside the prompt"):
        sampler.score(rows, [1, 2, 3], 2)


def test_of_rows_is_the_same_by_numpy() -> None:
    rows = np.stack([make_row(seed) for seed in range(4)])
    tokens = np.array([1, 2, 3, 4])
    found = logprobs.of_rows(NumpyRows(), rows, tokens, 3)
    for row, token, entry in zip(rows, tokens.tolist(), found, strict=True):
        assert entry == logprobs.raw(row, float(row.max()), token, 3)
