"""Arithmetic sampling: intervals to the bit, marginals, spread, and codes that never run dry."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from foreword.audit.chi_square import goodness
from foreword.errors import NonFiniteLogits, RequestError
from foreword.sample import noise
from foreword.sample.arithmetic import (
    ArithmeticSampler,
    ArithmeticState,
    code_of,
    coded,
    digits,
    locate,
    refined,
)
from foreword.types import Request, SamplingParams
from marginals import power

SAMPLER = ArithmeticSampler()
FALSE_ALARM = 1e-4


def params(**fields) -> SamplingParams:
    return SamplingParams(sampler="arithmetic", **fields).resolve({})


def state_of(code: float | None = None, seed: int = 5, **fields) -> tuple:
    settings = params(**({"temperature": 1.0} | fields), arithmetic_code=code)
    return settings, SAMPLER.begin(Request("", (1,), settings, seed))


def row_of(*probabilities: float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities)).astype(np.float32)


def run(row, count: int, **fields) -> list[int]:
    """Tokens of `count` positions that all have the same row."""
    settings, state = state_of(**fields)
    tokens = []
    for position in range(count):
        tokens.append(SAMPLER.choose(row, settings, state, position).token_id)
        SAMPLER.advance(row, state, tokens[-1])
    return tokens


@pytest.mark.parametrize(
    ("code", "token"),
    [(0.0, 0), (0.49, 0), (0.51, 1), (0.79, 1), (0.81, 3), (1.0 - 2.0**-53, 3)],
)
def test_the_code_falls_into_intervals_in_the_order_of_the_ids(code: float, token: int) -> None:
    """p = (.5, .3, 0, .2): the masked id has no interval."""
    settings, state = state_of(code)
    row = row_of(0.5, 0.3, 0.0, 0.2)
    assert SAMPLER.choose(row, settings, state, 0).token_id == token


def test_the_place_in_the_interval_is_the_next_code() -> None:
    settings, state = state_of(0.6)
    row = row_of(0.5, 0.25, 0.25)
    assert SAMPLER.choose(row, settings, state, 0).token_id == 1
    SAMPLER.advance(row, state, 1)
    assert state.code == pytest.approx(0.4, abs=1e-6)
    assert state.position == 1


def test_locate_is_exact_where_sums_and_code_are() -> None:
    sums = np.array([0.25, 0.25, 0.75, 1.0, 1.0])
    assert locate(sums, 0.25) == (2, 0.0, 0.5)
    assert locate(sums, 0.5) == (2, 0.5, 0.5)
    assert locate(sums, 0.0)[0] == 0
    index, place, _ = locate(sums, noise.LARGEST_BELOW_ONE)
    assert index == 3
    assert place <= 1.0
    assert locate(np.array([0.0, 3e-300, 3e-300]), 0.999)[0] == 1
    thirds = np.add.accumulate(np.array([1.0, 1.0, 1.0]) / 3.0 * (1.0 - 1e-16))
    assert locate(thirds, noise.LARGEST_BELOW_ONE)[0] == 2


@pytest.mark.parametrize("fields", [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.3}])
def test_only_what_the_filters_keep_can_come(fields: dict) -> None:
    row = row_of(0.05, 0.4, 0.1, 0.3, 0.15)
    kept = {0, 1, 2, 3, 4} if not fields else {1, 3, 4} if "top_p" not in fields else {1, 3}
    codes = [(place + 0.5) / 200 for place in range(200)]
    tokens = set()
    for code in codes:
        settings, state = state_of(code, **fields)
        tokens.add(SAMPLER.choose(row, settings, state, 0).token_id)
    assert tokens == kept


def test_temperature_zero_is_greedy_and_uses_nothing_up() -> None:
    settings, state = state_of(0.7, temperature=0.0)
    row = row_of(0.2, 0.4, 0.4)
    assert SAMPLER.choose(row, settings, state, 0).token_id == 1
    SAMPLER.advance(row, state, 1)
    assert state.code == 0.7


@pytest.mark.parametrize(
    ("temperature", "position", "count"),
    [(1.0, 0, 2000), (0.5, 2, 1000), (2.0, 0, 2000)],
)
def test_marginals_are_those_of_the_row(temperature: float, position: int, count: int) -> None:
    """Over seeds: the last of `position` + 1 tokens."""
    p = (0.35, 0.25, 0.2, 0.12, 0.08)
    row = row_of(*p)
    settings = params(temperature=temperature)
    tokens = []
    for seed in range(count):
        state = SAMPLER.begin(Request("", (1,), settings, seed))
        for place in range(position + 1):
            token = SAMPLER.choose(row, settings, state, place).token_id
            SAMPLER.advance(row, state, token)
        tokens.append(token)
    expected = np.array(p) ** (1.0 / temperature)
    counts = np.bincount(tokens, minlength=5)
    assert goodness(counts, expected / expected.sum()).p_value > FALSE_ALARM
    flat = np.full(5, 0.2)
    assert power(expected / expected.sum(), flat, count, FALSE_ALARM) > 0.9 or temperature == 2.0


def test_pairs_of_tokens_are_independent_beyond_the_first_digits() -> None:
    """Positions 38 and 39 of 300 seeds: nine cells of known chance. The 57 bits that 38 tokens use
    up are more than a float64 holds."""
    p = np.array([0.5, 0.3, 0.2])
    cells = np.zeros(9, dtype=int)
    for seed in range(300):
        tokens = run(row_of(*p), 40, seed=seed)
        cells[3 * tokens[38] + tokens[39]] += 1
    assert goodness(cells, np.outer(p, p).ravel()).p_value > FALSE_ALARM
    assert power(np.outer(p, p).ravel(), _tilted(p), 300, FALSE_ALARM) > 0.9


def _tilted(p: np.ndarray) -> np.ndarray:
    """A dependence that the test above would see: the diagonal 2.5 times as likely."""
    joint = np.outer(p, p) * (1.0 + 1.5 * np.eye(3))
    return (joint / joint.sum()).ravel()


def test_the_samples_of_a_request_are_spread_and_each_is_fair() -> None:
    """n = 10 of p = (.5, .3, .2): every request draws 5, 3 and 2 of the tokens, where independent
    sampling has a standard deviation of up to 1.6; sample 0 alone has the chances of p."""
    row, n = row_of(0.5, 0.3, 0.2), 10
    first = []
    for seed in range(150):
        counts: Counter[int] = Counter()
        for index in range(n):
            settings = coded(params(temperature=1.0, n=n), seed, index)
            state = SAMPLER.begin(Request("", (1,), settings, noise.derive(seed, index)))
            token = SAMPLER.choose(row, settings, state, 0).token_id
            counts[token] += 1
            if index == 0:
                first.append(token)
        assert [counts[token] for token in range(3)] == pytest.approx([5, 3, 2], abs=1)
    assert set(first) == {0}  # the first code is below 1 / 10: fair only over all indices
    spread = np.bincount([_first(row, n, seed, seed % n) for seed in range(1000)], minlength=3)
    assert goodness(spread, np.array([0.5, 0.3, 0.2])).p_value > FALSE_ALARM


def _first(row: np.ndarray, n: int, seed: int, index: int) -> int:
    settings = coded(params(temperature=1.0, n=n), seed, index)
    state = SAMPLER.begin(Request("", (1,), settings, noise.derive(seed, index)))
    return SAMPLER.choose(row, settings, state, 0).token_id


def test_samples_differ_where_independent_ones_repeat() -> None:
    """Eight continuations of six tokens over four equal ids: all different; independent samples of
    the first two tokens repeat one in most requests (16 pairs, 8 samples)."""
    row, n = row_of(0.25, 0.25, 0.25, 0.25), 8
    for seed in range(50):
        seen = set()
        for index in range(n):
            settings = coded(params(temperature=1.0, n=n), seed, index)
            state = SAMPLER.begin(Request("", (1,), settings, noise.derive(seed, index)))
            tokens = []
            for place in range(2):
                tokens.append(SAMPLER.choose(row, settings, state, place).token_id)
                SAMPLER.advance(row, state, tokens[-1])
            seen.add(tuple(tokens))
        assert len(seen) == n


def test_codes_are_the_paper_s_and_belong_to_the_seed() -> None:
    codes = [code_of(9, index, 4) for index in range(4)]
    assert codes == sorted(codes)
    gaps = np.diff(codes)
    assert gaps == pytest.approx([0.25] * 3)
    assert codes[0] == digits(9, 0) / 4
    assert codes != [code_of(10, index, 4) for index in range(4)]
    assert code_of(9, 0, 1) == digits(9, 0)
    assert all(0.0 <= code_of(seed, 127, 128) < 1.0 for seed in range(200))
    one = coded(params(n=4), 9, 2)
    assert (one.n, one.arithmetic_code) == (1, codes[2])
    assert coded(one, 77, 0) is one  # a code that is given stays


def test_new_digits_stay_below_the_last_known_one() -> None:
    """Against exact fractions: the refined code lies in the cell that the old digits leave."""
    for seed in range(200):
        share = 2.0 ** -(seed % 60)
        place = digits(seed, 99)
        code = refined(place, share, seed, 0)
        step = min(Fraction(1), Fraction(1, 2**53) / Fraction(share))
        low = min(Fraction(place), 1 - step)
        assert 0.0 <= code < 1.0
        assert low - Fraction(1, 2**52) <= Fraction(code) <= low + step + Fraction(1, 2**52)


def test_an_interval_below_all_digits_draws_a_fresh_code() -> None:
    assert refined(0.5, 1e-30, 3, 7) == digits(3, 8)


def test_choose_is_pure_and_other_rows_in_between_change_nothing() -> None:
    """A drafter may ask about rows of its own between the choice and its emission."""
    rng = np.random.default_rng(0)
    rows = [rng.normal(0, 2, 300).astype(np.float32) for _ in range(40)]
    plain, asked = [], []
    for disturbed, tokens in ((False, plain), (True, asked)):
        settings, state = state_of(0.3)
        for position, row in enumerate(rows):
            token = SAMPLER.choose(row, settings, state, position).token_id
            if disturbed:
                other = rows[position - 1].copy()
                SAMPLER.choose(other, settings, state, position)
                SAMPLER.rank(other, settings, state, position, 4)
                SAMPLER.rank(row, settings, state, position + 1, 4)
            SAMPLER.advance(row, state, token)
            tokens.append(token)
    assert plain == asked
    assert len(set(plain)) > 10


def test_rank_begins_with_the_choice_and_scores_fall() -> None:
    rng = np.random.default_rng(1)
    for seed in range(30):
        row = rng.normal(0, 1.5, 60).astype(np.float32)
        settings, state = state_of(None, seed)
        ranked = SAMPLER.rank(row, settings, state, 0, 6)
        assert ranked[0][0] == SAMPLER.choose(row, settings, state, 0).token_id
        scores = [score for _, score in ranked]
        assert scores == sorted(scores, reverse=True)
        assert all(0.0 < score <= 1.0 for score in scores)
        assert len({token for token, _ in ranked}) == len(ranked)


def test_rank_follows_its_own_first_guesses() -> None:
    """A drafter with the target's own rows guesses every token of a path."""
    rng = np.random.default_rng(2)
    rows = [rng.normal(0, 1.5, 60).astype(np.float32) for _ in range(12)]
    settings, state = state_of(0.123)
    guessed = [SAMPLER.rank(row, settings, state, place, 3)[0][0] for place, row in enumerate(rows)]
    emitted = []
    for place, row in enumerate(rows):
        emitted.append(SAMPLER.choose(row, settings, state, place).token_id)
        SAMPLER.advance(row, state, emitted[-1])
    assert guessed == emitted


def test_rank_at_temperature_zero_is_the_softmax() -> None:
    settings, state = state_of(0.9, temperature=0.0)
    ranked = SAMPLER.rank(row_of(0.2, 0.5, 0.3), settings, state, 0, 5)
    assert [token for token, _ in ranked] == [1, 2, 0]
    assert [score for _, score in ranked] == pytest.approx([0.5, 0.3, 0.2], abs=1e-5)


def test_logprobs_are_raw() -> None:
    settings, state = state_of(0.99, temperature=0.5, logprobs=1)
    choice = SAMPLER.choose(row_of(0.5, 0.3, 0.2), settings, state, 0)
    assert choice.token_id == 2
    assert choice.logprobs.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert choice.logprobs.top[0][0] == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_bad_rows_are_named(bad: float) -> None:
    settings, state = state_of(0.5)
    row = np.full(4, bad, dtype=np.float32)
    with pytest.raises(NonFiniteLogits, match="position 3"):
        SAMPLER.choose(row, settings, state, 3)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sampler", {"sampler": "nosuch"}),
        ("arithmetic_code", {"arithmetic_code": 0.5}),
        ("arithmetic_code", {"sampler": "arithmetic", "arithmetic_code": 1.0}),
        ("arithmetic_code", {"sampler": "arithmetic", "arithmetic_code": -0.1}),
        ("arithmetic_code", {"sampler": "arithmetic", "arithmetic_code": 0.5, "n": 2}),
    ],
)
def test_bad_parameters_are_refused_by_name(name: str, fields: dict) -> None:
    with pytest.raises(RequestError) as refused:
        SamplingParams(**fields)
    assert refused.value.parameter == name


def test_the_state_is_what_a_request_begins_with() -> None:
    assert isinstance(SAMPLER.begin(Request("", (1,), params(), 3)), ArithmeticState)
