"""Each processor against its formula, written naively, and transformers where both agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.sample import mirostat, noise, portable, typical, xtc
from foreword.sample.dry import match_lengths
from foreword.sample.sampler import GumbelSampler, SamplerState
from foreword.types import Request, SamplingParams

SAMPLER = GumbelSampler()
GONE = -np.inf
tokens = st.lists(st.integers(0, 5), max_size=24)


def request(prompt: Any = (), **fields: Any) -> Request:
    more = {
        name: fields.pop(name)
        for name in ("bad_words", "dry_breakers", "eos_ids", "max_tokens")
        if name in fields
    }
    params = SamplingParams(**{"temperature": 0.0, **fields}).resolve({})
    return Request("", tuple(prompt), params, 7, **more)


def after(asked: Request, output: Any) -> SamplerState:
    """The state of a request that has emitted `output`."""
    state = SAMPLER.begin(asked)
    for token in output:
        SAMPLER.advance(np.zeros(8, dtype=np.float32), state, token)
    return state


def changed(asked: Request, output: Any, row: Any) -> list[float]:
    """The row before the next token is chosen."""
    state = after(asked, output)
    logits = np.array(row, dtype=np.float32)
    return SAMPLER.open_row(logits, asked.params, state, len(output)).tolist()


def make_row(seed: int, size: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, size).astype(np.float32)


@given(prompt=tokens, output=tokens, seed=st.integers(0, 99), penalty=st.floats(0.3, 3.0))
def test_repetition(prompt: list[int], output: list[int], seed: int, penalty: float) -> None:
    row = make_row(seed)
    got = changed(request(prompt, repetition_penalty=penalty), output, row)
    for token, value in enumerate(row):
        if token in {*prompt, *output}:
            value = value / np.float32(penalty) if value > 0 else value * np.float32(penalty)
        assert got[token] == value


@given(
    prompt=tokens,
    output=tokens,
    seed=st.integers(0, 99),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
)
def test_presence_and_frequency(
    prompt: list[int], output: list[int], seed: int, presence: float, frequency: float
) -> None:
    row = make_row(seed)
    asked = request(prompt, presence_penalty=presence, frequency_penalty=frequency)
    got = changed(asked, output, row)
    for token, value in enumerate(row):
        count = output.count(token)
        loss = np.float32(frequency * count + presence) if count else np.float32(0)
        assert got[token] == value - loss


def naive_dry(x: list[int], asked: Request) -> dict[int, float]:
    """The definition in dry.py, one place and one length at a time."""
    params, breakers = asked.params, asked.dry_breakers
    if params.dry_penalty_last_n >= 0:
        x = x[len(x) - min(len(x), params.dry_penalty_last_n) :]
    losses: dict[int, float] = {}
    for place in range(len(x) - 1):
        length = 0
        while length <= place and x[place - length] == x[-1 - length]:
            if x[place - length] in breakers:
                break
            length += 1
        following = x[place + 1]
        if length >= params.dry_allowed_length and following not in breakers:
            power = params.dry_base ** (length - params.dry_allowed_length)
            loss = params.dry_multiplier * power
            losses[following] = max(loss, losses.get(following, 0.0))
    return losses


@settings(max_examples=300)
@given(
    prompt=st.lists(st.integers(0, 3), max_size=20),
    output=st.lists(st.integers(0, 3), max_size=20),
    allowed=st.integers(1, 4),
    last_n=st.sampled_from([-1, 0, 1, 2, 3, 7, 12, 100]),
    breakers=st.frozensets(st.integers(0, 3), max_size=2),
)
def test_dry(
    prompt: list[int], output: list[int], allowed: int, last_n: int, breakers: frozenset[int]
) -> None:
    asked = request(
        prompt,
        dry_multiplier=0.5,
        dry_base=2.0,
        dry_allowed_length=allowed,
        dry_penalty_last_n=last_n,
        dry_breakers=breakers,
    )
    losses = naive_dry(prompt + output, asked)
    got = changed(asked, output, np.zeros(8))
    assert got == [-losses.get(token, 0.0) for token in range(8)]


def test_dry_of_a_long_repetition_stays_finite() -> None:
    asked = request([1] * 3000, dry_multiplier=0.8)
    got = changed(asked, [], np.zeros(8))
    assert math.isfinite(got[1])
    assert got[1] < -1e29
    assert got[0] == 0.0
    assert match_lengths([1, 2, 1, 2, 1], frozenset()).tolist() == [1, 0, 3, 0]


@given(output=tokens, words=st.lists(tokens.filter(bool), max_size=4))
def test_bad_words(output: list[int], words: list[list[int]]) -> None:
    words = [word[:3] for word in words]
    got = changed(request((0, 1), bad_words=tuple(map(tuple, words))), output, np.zeros(8))
    masked = {word[-1] for word in words if output[len(output) - len(word) + 1 :] == word[:-1]
              and len(output) >= len(word) - 1}  # fmt: skip
    assert got == [GONE if token in masked else 0.0 for token in range(8)]


def test_masks_and_bias() -> None:
    zeros = np.zeros(6)
    assert changed(request(logit_bias={2: 1.5, 4: -3}), [], zeros) == [0, 0, 1.5, 0, -3, 0]
    assert changed(request(allowed_token_ids=[4, 1, 4]), [], zeros) == [
        GONE, 0, GONE, GONE, 0, GONE]  # fmt: skip
    ends = request(min_tokens=2, eos_ids=frozenset({0}), stop_token_ids=[5, 99])
    for count, masked in ((0, True), (1, True), (2, False)):
        edge = GONE if masked else 0.0
        assert changed(ends, [3] * count, zeros) == [edge, 0, 0, 0, 0, edge]


def test_bias_comes_before_penalties_and_masks_after_all() -> None:
    """1 + 1 = 2, halved by the repetition penalty, minus 0.5: not (1 / 2) + 1 - 0.5."""
    asked = request(
        [0],
        logit_bias={0: 1.0, 1: 1.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        allowed_token_ids=[0],
    )
    assert changed(asked, [0], [1.0, 1.0]) == [0.5, GONE]


def naive_typical(row: np.ndarray, mass: float) -> set[int]:
    likely = np.exp(row - row.max())
    likely /= likely.sum()
    distance = np.abs(-np.log(likely) - (-(likely * np.log(likely)).sum()))
    order = np.argsort(distance)
    reached = np.flatnonzero(np.cumsum(likely[order]) >= mass)[0]
    return set(order[: reached + 1].tolist())


@given(seed=st.integers(0, 10_000), mass=st.floats(0.05, 0.95), temperature=st.floats(0.3, 2.0))
def test_typical(seed: int, mass: float, temperature: float) -> None:
    row = make_row(seed, 40)
    ids = typical.kept(row, None, float(row.max()), temperature, mass)
    assert set(ids.tolist()) == naive_typical(row.astype(np.float64) / temperature, mass)


def test_typical_may_drop_the_likeliest() -> None:
    row = np.log(np.array([0.4] + [0.06] * 10)).astype(np.float32)
    assert typical.kept(row, None, float(row.max()), 1.0, 0.5).tolist() == list(range(1, 11))


def test_xtc_drops_all_but_the_last_of_the_likely() -> None:
    row = np.log(np.array([0.3, 0.4, 0.2, 0.1])).astype(np.float32)

    def kept(threshold: float, ids: Any = None) -> list[int]:
        return xtc.kept(row, ids, float(row.max()), 1.0, threshold).tolist()

    assert kept(0.15) == [2, 3]
    assert kept(0.35) == [0, 1, 2, 3]  # one likely id: nothing happens
    assert kept(0.45) == [0, 1, 2, 3]
    assert kept(0.0) == [3]
    assert kept(0.35, np.array([0, 2, 3])) == [0, 2, 3]  # shares of what is kept: .5, .33, .17
    assert kept(0.3, np.array([0, 2, 3])) == [2, 3]
    flat = np.zeros(5, dtype=np.float32)
    assert xtc.kept(flat, None, 0.0, 1.0, 0.1).tolist() == [4]


def test_xtc_strikes_by_position_and_in_its_own_stream() -> None:
    strikes = [xtc.strikes(5, position, 0.3) for position in range(2000)]
    assert strikes == [xtc.strikes(5, position, 0.3) for position in range(2000)]
    assert 0.25 < np.mean(strikes) < 0.35
    assert strikes != [xtc.strikes(6, position, 0.3) for position in range(2000)]
    assert all(xtc.strikes(5, position, 1.0) for position in range(50))
    assert not any(xtc.strikes(5, position, 0.0) for position in range(50))
    drawn = noise.uniform(noise.words(5, 17, 1))[0]
    assert noise.chance(5, noise.XTC, 17) != drawn


def test_marginals_under_xtc_follow_the_closed_form() -> None:
    """p = (.4, .3, .2, .1), threshold .25, half of the time: 0 goes, and what is left is scaled.
    Chi-square with 3 degrees of freedom; 16.3 has odds of 1 in 1,000, and the seed is fixed."""
    likely = np.array([0.4, 0.3, 0.2, 0.1])
    asked = request(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.25)
    row, state = np.log(likely).astype(np.float32), SAMPLER.begin(asked)
    count = 6_000
    draws = [SAMPLER.choose(row, asked.params, state, at).token_id for at in range(count)]
    without = np.array([0.0, 0.3, 0.2, 0.1]) / 0.6
    expected = count * (likely + without) / 2
    found = np.bincount(draws, minlength=4)
    assert ((found - expected) ** 2 / expected).sum() < 16.3
    assert ((found - count * likely) ** 2 / (count * likely)).sum() > 500  # the test has power


def test_mirostat_follows_the_formula() -> None:
    """mu after each token, in plain numpy; what is kept is never more surprising than mu."""
    asked = request(temperature=0.8, mirostat_mode=2, mirostat_tau=2.5, mirostat_eta=0.3)
    state = SAMPLER.begin(asked)
    mu = 5.0
    for position in range(30):
        row = make_row(position, 50)
        likely = np.exp(row.astype(np.float64) / 0.8)
        likely /= likely.sum()
        bits = -np.log2(likely)
        keep = bits <= mu
        if not keep.any():
            keep[row.argmax()] = True
        assert state.mirostat is not None
        found = mirostat.kept(row, float(row.max()), 0.8, state.mirostat.mu)
        assert set(found.tolist()) == set(np.flatnonzero(keep).tolist())
        token = SAMPLER.choose(row, asked.params, state, position).token_id
        assert keep[token]
        mu -= 0.3 * (-math.log2(likely[token] / likely[keep].sum()) - 2.5)
        SAMPLER.advance(row, state, token)
        assert math.isclose(state.mirostat.mu, mu, rel_tol=1e-9)


def test_mirostat_aims_at_its_surprise() -> None:
    asked = request(temperature=1.0, mirostat_mode=2, mirostat_tau=3.0)
    state = SAMPLER.begin(asked)
    seen = []
    for position in range(600):
        row = make_row(position, 400)
        token = SAMPLER.choose(row, asked.params, state, position).token_id
        assert state.mirostat is not None
        seen.append(SAMPLER.surprise(row, state, state.mirostat, token))
        SAMPLER.advance(row, state, token)
    assert abs(np.mean(seen[100:]) - 3.0) < 0.2


def test_transformers_has_the_same_answers() -> None:
    """Repetition, min-p, typical: on rows where rounding decides nothing."""
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.generation.logits_process")
    for seed in range(25):
        row = make_row(seed, 60)
        scores = torch.tensor(row)[None]
        seen = np.random.default_rng(seed).integers(0, 60, 20).tolist()
        repeated = theirs.RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([seen]), scores)
        got = changed(request(seen[:12], repetition_penalty=1.3), seen[12:], row)
        assert got == repeated[0].tolist()
        for fields, warper in (
            ({"min_p": 0.07}, theirs.MinPLogitsWarper(0.07)),
            ({"typical_p": 0.83}, theirs.TypicalLogitsWarper(0.83)),
        ):
            open_row = changed(request(temperature=1.0, **fields), [], row)
            assert open_row == warper(None, scores)[0].tolist()


def test_portable_sums_of_the_filters_are_the_definition() -> None:
    """typical's m by hand, in the order of block_sum."""
    row = make_row(3, 3000)
    shifted = row.astype(np.float64) - float(row.max())
    weights = portable.exp(shifted)
    ids = np.arange(3000)
    mean = -(portable.block_sum(weights * -shifted, ids) / portable.block_sum(weights, ids))
    distance = np.abs(shifted - mean)
    kept = typical.kept(row, None, float(row.max()), 1.0, 0.6)
    assert set(kept.tolist()) == set(np.flatnonzero(distance <= distance[kept].max()).tolist())
