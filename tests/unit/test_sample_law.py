"""`Sampler.law` is what `choose` draws from, `coin` a stream of its own; a token that is given is
emitted with the logprobs it would have had."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foreword.audit.chi_square import goodness
from foreword.sample.law import distance, normal, point
from foreword.sample.sampler import GumbelSampler, SamplerState
from foreword.types import SamplingParams

SAMPLER = GumbelSampler()
ROW = (2.0 * np.random.default_rng(1).standard_normal(40)).astype(np.float32)
ROW[[3, 17]] = -np.inf


def resolved(**fields: Any) -> SamplingParams:
    return SamplingParams(**fields).resolve({})


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 9},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_choose_draws_from_the_law(fields: dict[str, float]):
    params = resolved(**fields)
    law = SAMPLER.law(ROW, params, SamplerState(0), 0)
    assert law.chances.sum() == pytest.approx(1.0, abs=1e-12)
    assert law.of(3) == law.of(17) == 0.0
    counts = np.zeros(len(ROW), dtype=np.int64)
    for seed in range(1500):
        counts[SAMPLER.choose(ROW, params, SamplerState(seed), 5).token_id] += 1
    assert goodness(counts, law.chances / law.chances.sum()).p_value > 1e-4


def test_a_greedy_law_is_one_token():
    law = SAMPLER.law(ROW, resolved(temperature=0.0), SamplerState(0), 0)
    assert law.of(int(ROW.argmax())) == 1.0
    assert law.entropy == 0.0


def test_drawing_walks_the_running_sum():
    law = normal(np.array([0.0, 1.0, 0.0, 3.0]))
    assert [law.draw(coin) for coin in (1e-17, 0.2499, 0.25, 0.5, 1 - 2**-53)] == [1, 1, 3, 3, 3]
    assert normal(np.array([1.0, 0.0])).draw(1 - 2**-53) == 0
    assert law.of(99) == 0.0
    assert law.peak == 0.75
    assert law.entropy == pytest.approx(0.5623351)
    assert distance(law, point(1, 4)) == 0.75


def test_a_given_token_is_emitted_with_its_own_logprobs():
    params, state = resolved(temperature=1.0, logprobs=3), SamplerState(4)
    own = SAMPLER.choose(ROW, params, state, 2)
    assert SAMPLER.choose(ROW, params, state, 2, own.token_id) == own
    other = int(np.argsort(ROW)[5])
    given = SAMPLER.choose(ROW, params, state, 2, other)
    assert given.token_id == given.logprobs.token_id == other
    assert given.logprobs.top == own.logprobs.top
    with pytest.raises(AssertionError, match="id 3 is masked at output position 2"):
        SAMPLER.choose(ROW, params, state, 2, 3)


def test_coins_are_uniform_and_apart():
    state = SamplerState(2**63)
    coins = [
        SAMPLER.coin(state, position, number, since)
        for position in range(20)
        for number in range(10)
        for since in range(10)
    ]
    assert len(set(coins)) == 2000
    assert 0.0 < min(coins) < max(coins) < 1.0
    counts = np.bincount((np.array(coins) * 10).astype(int), minlength=10)
    assert goodness(counts, np.full(10, 0.1)).p_value > 1e-4
    assert SAMPLER.coin(state, 0, 0) == coins[0]
    assert SAMPLER.coin(SamplerState(1), 0, 0) != coins[0]
