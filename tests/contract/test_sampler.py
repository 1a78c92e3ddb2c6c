"""The sampler's promises: pure, exact, greedy at temperature 0, and honest about bad rows.

Asked of the specification and, where the extension is built, of the compiled chain.
"""

from __future__ import annotations

import math
import sys

import mpmath
import numpy as np
import pytest

from foreword.errors import KernelUnavailable, NonFiniteLogits, RequestError
from foreword.kernels.cpu import native_rows
from foreword.kernels.cpu.sampling import NativeRows
from foreword.sample import filters, noise, portable
from foreword.sample.compiled import CompiledSampler
from foreword.sample.sampler import GumbelSampler, SamplerState, make
from foreword.types import MAX_SEED, Request, SamplingParams

VOCAB = 1300


def samplers() -> dict[str, GumbelSampler]:
    try:
        return {"numpy": make(), "compiled": CompiledSampler(native_rows())}
    except KernelUnavailable:
        return {"numpy": make()}


SAMPLERS = samplers()
SAMPLER = SAMPLERS["numpy"]  # the one under test: `sampler` sets it


@pytest.fixture(params=SAMPLERS, autouse=True)
def sampler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GumbelSampler:
    chosen = SAMPLERS[request.param]
    monkeypatch.setattr(sys.modules[__name__], "SAMPLER", chosen)
    return chosen


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "min_p": 0.2},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20},
    {"temperature": 2.0, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 40, "top_p": 0.8, "min_p": 0.01, "logprobs": 5},
]


def params(**fields) -> SamplingParams:
    return SamplingParams(**fields).resolve({})


def choose(row: np.ndarray, seed: int, position: int, **fields):
    settings = params(**fields)
    state = SAMPLER.begin(Request("", (1, 2, 3), settings, seed))
    return SAMPLER.choose(row, settings, state, position)


def others() -> list[NativeRows]:
    """What another sampler of the same kind is made of."""
    return [native_rows()] if isinstance(SAMPLER, CompiledSampler) else []


def token(row: np.ndarray, seed: int, position: int, **fields) -> int:
    return choose(row, seed, position, **fields).token_id


def make_row(seed: int, size: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, size).astype(np.float32)


def definition(row: np.ndarray, seed: int, position: int, fields: dict) -> int:
    """Filters, then arg-max of logit + temperature * noise with every noise value evaluated."""
    settings = params(**fields)
    if settings.temperature == 0.0:
        return int(row.argmax())
    peak = float(row.max())
    ids = filters.kept(
        row, peak, settings.temperature, settings.top_k, settings.top_p, settings.min_p
    )
    ids = np.flatnonzero(row > -np.inf) if ids is None else ids
    noises = noise.gumbel(seed, position, len(row))[ids]
    scores = row[ids].astype(np.float64) + settings.temperature * noises
    return int(ids[scores.argmax()])


@pytest.mark.parametrize("fields", SETTINGS)
def test_choice_is_the_definition(fields: dict) -> None:
    for position in range(60):
        row = make_row(position)
        assert token(row, 5, position, **fields) == definition(row, 5, position, fields)


@pytest.mark.parametrize("fields", SETTINGS)
def test_choice_depends_on_values_only(fields: dict) -> None:
    """Twice the same; strided, misaligned, read-only and batch-sliced rows give the same bits; the
    row is left as it was; another sampler object and other calls in between change nothing."""
    row = make_row(1)
    want = choose(row, 11, 4, **fields)
    before = row.copy()
    batch = np.zeros((3, VOCAB), dtype=np.float32)
    batch[1] = row
    strided = np.zeros((VOCAB, 2), dtype=np.float32)
    strided[:, 1] = row
    raw = np.zeros(4 * VOCAB + 1, dtype=np.uint8)
    raw[1:] = row.view(np.uint8)
    misaligned = raw[1:].view(np.float32)
    assert not misaligned.flags.aligned
    frozen = row.copy()
    frozen.flags.writeable = False
    for same in (row, batch[1], strided[:, 1], misaligned, frozen, row[::-1][::-1]):
        choose(make_row(2), 12, 9, **fields)
        got = type(SAMPLER)(*others()).choose(same, params(**fields), SamplerState(11), 4)
        assert got == want
    assert row.tobytes() == before.tobytes()


@pytest.mark.parametrize("fields", SETTINGS)
def test_rank_begins_with_the_choice(fields: dict) -> None:
    settings = params(**fields)
    for position in range(30):
        row = make_row(position + 100)
        state = SAMPLER.begin(Request("", (), settings, 3))
        ranked = SAMPLER.rank(row, settings, state, position, 6)
        assert ranked[0][0] == SAMPLER.choose(row, settings, state, position).token_id
        assert 1 <= len(ranked) <= 6
        assert len({token for token, _ in ranked}) == len(ranked)
        scores = [score for _, score in ranked]
        assert scores == sorted(scores, reverse=True)
        assert all(0.0 < score <= 1.0 for score in scores)
        assert (
            ranked[:1] == SAMPLER.rank(row, settings, state, position, 1) or fields["temperature"]
        )


def test_rank_order_is_by_perturbed_score() -> None:
    row = make_row(6)
    settings = params(temperature=0.8)
    ranked = SAMPLER.rank(row, settings, SamplerState(2), 7, 10)
    scores = row.astype(np.float64) + 0.8 * noise.gumbel(2, 7, VOCAB)
    assert [token for token, _ in ranked] == np.argsort(-scores)[:10].tolist()


def test_rank_at_temperature_zero_is_the_softmax() -> None:
    row = np.log(np.array([0.2, 0.5, 0.3])).astype(np.float32)
    ranked = SAMPLER.rank(row, params(temperature=0.0), SamplerState(0), 0, 5)
    assert [token for token, _ in ranked] == [1, 2, 0]
    assert np.allclose([score for _, score in ranked], [0.5, 0.3, 0.2], atol=1e-5)


def test_rank_offers_no_masked_id() -> None:
    row = np.full(VOCAB, -np.inf, dtype=np.float32)
    row[[3, 900]] = 1.0
    for temperature in (0.0, 1.0):
        ranked = SAMPLER.rank(row, params(temperature=temperature), SamplerState(0), 0, 5)
        assert {token for token, _ in ranked} == {3, 900}


def test_v07_top_k_one_at_temperature_one_is_greedy() -> None:
    """V07: at every position and seed, ties included."""
    for position in range(200):
        row = np.round(make_row(position, 60))
        greedy = token(row, 1, position, temperature=0.0)
        assert token(row, position, position, temperature=1.0, top_k=1) == greedy
        assert token(row, position, position, temperature=0.1, top_k=1) == greedy
        assert token(row, position, position, temperature=1.0, top_p=1e-12) == greedy


def test_greedy_ties_go_to_the_lowest_id() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    row[[700, 41, 1299]] = 2.0
    assert token(row, 9, 0, temperature=0.0) == 41


def test_v08_min_p_makes_unlikely_tokens_impossible() -> None:
    """V08: p = (.5, .3, .15, .05), min_p .3 (threshold .15): token 3 never in 4,000 draws, where
    plain sampling gives it about 200 times."""
    row = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    draws = [token(row, 8, position, temperature=1.0, min_p=0.3) for position in range(4000)]
    assert 3 not in draws
    assert {0, 1} <= set(draws)
    plain = [token(row, 8, position, temperature=1.0) for position in range(1000)]
    assert 3 in plain


@pytest.mark.parametrize("temperature", [1e-5, 1e-7, 1e-45, 5e-324])
def test_v35_tiny_temperatures_are_greedy(temperature: float) -> None:
    """V35: no NaN, no overflow; bfloat16-rounded logits included (distinct highest logit)."""
    for position in range(40):
        row = make_row(position)
        row = (row.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # bfloat16 values
        row[position * 7] = 20.0
        greedy = token(row, 1, position, temperature=0.0)
        for fields in ({}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}):
            assert token(row, 1, position, temperature=temperature, **fields) == greedy


def test_v35_large_logits_at_temperature_two() -> None:
    for position in range(40):
        row = make_row(position) * np.float32(1e4)
        fields = {"temperature": 2.0, "top_p": 0.9}
        got = choose(row, 1, position, logprobs=3, **fields)
        assert got.token_id == definition(row, 1, position, fields)
        assert math.isfinite(got.logprobs.logprob)


@pytest.mark.parametrize("temperature", [1e30, 1e36, 1e300, 1.7e308])
def test_huge_temperatures_stay_defined(temperature: float) -> None:
    row = make_row(3)
    row[::2] = -np.inf
    for fields in ({}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert token(row, 1, 0, temperature=temperature, **fields) % 2 == 1


def test_v36_a_seed_repeats_and_another_differs() -> None:
    """V36: 12 tokens at temperature 1.8, five times, with other traffic in between."""
    rows = [make_row(position) for position in range(12)]

    def stream(seed: int) -> list[int]:
        return [token(row, seed, at, temperature=1.8) for at, row in enumerate(rows)]

    first = stream(7)
    for other in range(5):
        assert stream(100 + other) != first
        assert stream(7) == first


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1, 2**63, MAX_SEED])
def test_v36_every_seed_in_range_works(seed: int) -> None:
    assert SamplingParams(seed=seed).seed == seed
    assert 0 <= token(make_row(0), seed, 2**31, temperature=1.0) < VOCAB


@pytest.mark.parametrize("seed", [-1, MAX_SEED + 1, 1.5, True])
def test_v36_seeds_out_of_range_are_refused_by_name(seed) -> None:
    with pytest.raises(RequestError, match="seed"):
        SamplingParams(seed=seed)


def test_v36_high_bits_of_a_seed_count() -> None:
    rows = [make_row(position) for position in range(12)]
    streams = {
        tuple(token(row, seed, at, temperature=1.5) for at, row in enumerate(rows))
        for seed in (1, 1 + 2**32, 1 + 2**53, 1 + 2**63)
    }
    assert len(streams) == 4


def test_v37_fresh_seeds_give_different_texts_and_repeat() -> None:
    """V37: 20 unseeded requests of 16 tokens; each has its own seed, and replays with it."""
    rows = [make_row(position) for position in range(16)]
    texts = {}
    for _ in range(20):
        seed = noise.fresh_seed()
        texts[seed] = tuple(token(row, seed, at, temperature=1.0) for at, row in enumerate(rows))
    assert len(texts) == 20
    assert len(set(texts.values())) == 20  # 16 nearly free choices of 1,300 each: a repeat is a bug
    for seed, text in texts.items():
        assert text == tuple(token(row, seed, at, temperature=1.0) for at, row in enumerate(rows))


def test_positions_do_not_share_noise() -> None:
    """A flat row at 200 positions under one seed: a stream that ignores the position repeats."""
    row = np.zeros(VOCAB, dtype=np.float32)
    draws = [token(row, 4, position, temperature=1.0) for position in range(200)]
    assert len(set(draws)) > 150


def test_v39_logprobs_are_the_log_softmax_of_the_raw_logits() -> None:
    """V39: whatever temperature and filters do, against 40-digit arithmetic, to 2 ulp or so."""
    row = make_row(0, 300)
    with mpmath.workdps(40):
        total = mpmath.fsum(mpmath.exp(mpmath.mpf(value)) for value in row.tolist())
        right = [float(mpmath.mpf(value) - mpmath.log(total)) for value in row.tolist()]
    order = sorted(range(300), key=lambda v: (-row[v], v))
    for fields in SETTINGS:
        choice = choose(row, 5, 1, **{**fields, "logprobs": 7})
        found = choice.logprobs
        assert found.token_id == choice.token_id
        assert math.isclose(found.logprob, right[choice.token_id], rel_tol=1e-14)
        assert [token for token, _ in found.top] == order[:7]
        for best, logprob in found.top:
            assert math.isclose(logprob, right[best], rel_tol=1e-14)
        assert isinstance(found.logprob, float)


def test_v39_logprob_bits_follow_the_stated_order_of_operations() -> None:
    row = make_row(3, 3000)
    shifted = row.astype(np.float64) - float(row.max())
    total = portable.block_sum(portable.exp(shifted))
    scale = float(portable.log(np.array([total]))[0])
    choice = choose(row, 1, 0, temperature=1.0, logprobs=0)
    assert choice.logprobs.top == ()
    assert choice.logprobs.logprob == float(shifted[choice.token_id]) - scale


def test_logprob_ties_go_to_the_lowest_id_and_masked_ids_are_left_out() -> None:
    row = np.array([1.0, -np.inf, 2.0, 2.0, -np.inf, 1.0], dtype=np.float32)
    top = choose(row, 1, 0, temperature=0.0, logprobs=20).logprobs.top
    assert [token for token, _ in top] == [2, 3, 0, 5]
    assert all(math.isfinite(logprob) for _, logprob in top)
    top = choose(row, 1, 0, temperature=0.0, logprobs=3).logprobs.top
    assert [token for token, _ in top] == [2, 3, 0]


def test_one_token_left_has_probability_one() -> None:
    row = np.full(50, -np.inf, dtype=np.float32)
    row[17] = -5.0
    for temperature in (0.0, 1.0):
        choice = choose(row, 1, 0, temperature=temperature, logprobs=2)
        assert choice.token_id == 17
        assert choice.logprobs.top == ((17, 0.0),)


@pytest.mark.parametrize("fields", SETTINGS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_rows_are_errors_that_name_the_position(fields: dict, bad: float) -> None:
    for at in (0, 1, 63, 64, 777, VOCAB - 1):
        row = make_row(0)
        row[at] = bad
        for call in (SAMPLER.choose, lambda *given: SAMPLER.rank(*given, 3)):
            with pytest.raises(NonFiniteLogits, match="position 31"):
                call(row, params(**fields), SamplerState(1), 31)


def test_v35_nan_beside_infinities_is_still_an_error() -> None:
    for values in ([np.nan, np.inf, 0], [np.inf, np.nan, 0], [-np.inf, np.nan, 0]):
        with pytest.raises(NonFiniteLogits):
            token(np.array(values, dtype=np.float32), 1, 0, temperature=0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_all_masked_row_is_an_error(temperature: float) -> None:
    with pytest.raises(NonFiniteLogits, match="masked"):
        token(np.full(9, -np.inf, dtype=np.float32), 1, 0, temperature=temperature)


def test_a_vocabulary_of_one() -> None:
    row = np.zeros(1, dtype=np.float32)
    for fields in SETTINGS:
        assert token(row, 1, 0, **fields) == 0
