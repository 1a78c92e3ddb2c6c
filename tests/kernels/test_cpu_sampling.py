"""Compiled sampling has the bits of sample/: every parameter, seed, instruction set, thread count.

Rows are made to reach the corners: ties, flat and peaked rows, masked ids, both zeros, subnormal
and extreme logits, NaN and infinities, lengths around the sizes that the compiled code works in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.errors import KernelUnavailable, NonFiniteLogits
from foreword.kernels.cpu.backend import ISAS, load_native
from foreword.kernels.cpu.sampling import NativeRows
from foreword.protocols import RowAsk
from foreword.sample import noise
from foreword.sample.compiled import CompiledSampler
from foreword.sample.rows import NumpyRows
from foreword.sample.sampler import GumbelSampler, SamplerState
from foreword.types import MAX_SEED, SamplingParams


def _everyone() -> Iterator[NativeRows]:
    try:
        native = load_native()
    except KernelUnavailable:
        return
    alone, pair = native.Pool(1), native.Pool(2)
    for isa in ISAS:
        if native.has_isa(isa):
            yield NativeRows(native, lambda: alone, isa)
    yield NativeRows(native, lambda: pair, native.best_isa())


EVERYONE = list(_everyone())
SPECIFICATION = GumbelSampler()
SIZES = [1, 2, 3, 5, 63, 64, 65, 257, 700, 1024, 1025, 2049, 4097, 9000]
KINDS = {
    "flat": lambda rng, n: np.zeros(n),
    "normal": lambda rng, n: rng.normal(0, 3, n),
    "wide": lambda rng, n: rng.normal(0, 9, n),
    "peaked": lambda rng, n: rng.normal(0, 1, n) + 12.0 * (rng.random(n) < 3 / n),
    "quantised": lambda rng, n: np.round(rng.normal(0, 2, n) * 2) / 2,
    "masked": lambda rng, n: np.where(rng.random(n) < 0.9, -np.inf, rng.normal(0, 3, n)),
    "huge": lambda rng, n: rng.normal(0, 1e4, n),
    "extreme": lambda rng, n: rng.choice([-3.4e38, -1e30, 0.0, 1e30, 3.4e38], n),
    "tiny": lambda rng, n: rng.choice([-0.0, 0.0, 1e-45, -1e-45, 1e-38], n),
    "bad": lambda rng, n: np.where(
        np.arange(n) == rng.integers(n), rng.choice([np.nan, np.inf, -np.nan]), rng.normal(0, 1, n)
    ),
}

pytestmark = pytest.mark.skipif(not EVERYONE, reason="the extension is not built")


def make_row(kind: str, size: int, seed: int) -> np.ndarray:
    return KINDS[kind](np.random.default_rng(seed), size).astype(np.float32)


def outcome(call: Any, *given: Any) -> str:
    """All bits of an answer or an error, as text (repr of a float64 is exact). numpy is as quiet as
    in an engine's step."""
    try:
        with np.errstate(all="ignore"):
            return repr(call(*given))
    except NonFiniteLogits as error:
        return f"error: {error}"


temperatures = st.one_of(
    st.sampled_from([0.0, 1.0, 0.8, 1e-3, 1e-45, 5e-324, 1e-100, 1e6, 1e30, 1e36, 1.7e308]),
    st.floats(0.05, 4.0),
)
parameters = st.builds(
    lambda **fields: SamplingParams(**fields).resolve({}),
    temperature=temperatures,
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 40, 300, 2000, 10**30]),
    top_p=st.one_of(st.sampled_from([1.0, 0.95, 1e-12, 1.0 - 2.0**-53]), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.sampled_from([0.0, 1.0, 5e-324]), st.floats(0.0, 1.0)),
    logprobs=st.sampled_from([None, None, 0, 1, 5, 20]),
)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from(SIZES),
    content=st.integers(0, 2**32),
    params=parameters,
    seed=st.one_of(st.integers(0, MAX_SEED), st.sampled_from([0, 2**63, MAX_SEED])),
    position=st.one_of(st.integers(0, 4096), st.just(2**31)),
)
def test_every_bit_is_the_specifications(
    kind: str, size: int, content: int, params: SamplingParams, seed: int, position: int
) -> None:
    ask = make_row(kind, size, content), params, SamplerState(seed), position
    choice = outcome(SPECIFICATION.choose, *ask)
    ranking = outcome(SPECIFICATION.rank, *ask, 6)
    for rows in EVERYONE:
        sampler = CompiledSampler(rows)
        assert outcome(sampler.choose, *ask) == choice
        assert outcome(sampler.rank, *ask, 6) == ranking


@pytest.mark.parametrize("size", [49152, 151936])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.999])
def test_whole_vocabularies(size: int, top_p: float) -> None:
    """Large enough for every way the work on one row is shared."""
    params = SamplingParams(temperature=0.9, top_p=top_p, logprobs=3).resolve({})
    for content, kind in enumerate(("normal", "wide", "flat")):
        ask = make_row(kind, size, content), params, SamplerState(9), content
        want = SPECIFICATION.choose(*ask)
        assert all(CompiledSampler(rows).choose(*ask) == want for rows in EVERYONE)


def test_words_are_philox_of_seed_position_and_id() -> None:
    """A flat row at temperature 1 shows the noise itself: its scores are the noise."""
    row = np.zeros(301, dtype=np.float32)
    for seed, position in ((0, 0), (5, 17), (MAX_SEED, 2**40)):
        want = noise.gumbel(seed, position, len(row))
        for rows in EVERYONE:
            fault, found = rows.rank(RowAsk(row, row, seed, position, 1.0), len(row))
            assert fault == 0
            assert found == sorted(enumerate(want.tolist()), key=lambda pair: (-pair[1], pair[0]))


def test_logits_that_cancel_the_noise() -> None:
    """Every score is 10 up to float32 rounding: a bound that is too tight loses the winner."""
    for position in range(40):
        for temperature in (1e-3, 0.5, 1.0, 8.0):
            noises = noise.gumbel(3, position, 3000)
            row = (10.0 - temperature * noises).astype(np.float32)
            params = SamplingParams(temperature=temperature).resolve({})
            ask = row, params, SamplerState(3), position
            want = outcome(SPECIFICATION.rank, *ask, 5)
            assert all(outcome(CompiledSampler(rows).rank, *ask, 5) == want for rows in EVERYONE)


def test_many_rows_at_once_are_the_rows_alone() -> None:
    """Each with its own parameters; a bad row is its own error and nobody else's."""
    each = [{}, {"temperature": 0.0}, {"top_p": 0.7}, {"top_k": 3, "logprobs": 4}, {"min_p": 0.1}]
    for rows in EVERYONE:
        sampler = CompiledSampler(rows)
        asks = []
        for number, kind in enumerate(["normal", "wide", "bad", "peaked", "flat", "masked"] * 3):
            params = SamplingParams(**each[number % 5]).resolve({})
            asks.append((make_row(kind, 3000, number), params, SamplerState(number), number))
        together = sampler.choose_rows(asks)
        for ask, found in zip(asks, together, strict=True):
            if isinstance(found, Exception):
                assert outcome(SPECIFICATION.choose, *ask) == f"error: {found}"
            else:
                assert found == SPECIFICATION.choose(*ask)
        assert sum(isinstance(found, Exception) for found in together) == 3


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS.keys() - {"bad"})),
    size=st.sampled_from(SIZES),
    share=st.floats(0.0, 1.0),
)
def test_top_k_and_log_softmax(kind: str, size: int, share: float) -> None:
    batch = np.stack([make_row(kind, size, seed) for seed in range(3)])
    k = max(1, round(size * share))
    ids, values = NumpyRows().top_k(batch, k)
    chosen = ids[:, -1].astype(np.int64)
    want = NumpyRows().log_softmax(batch, chosen)
    by_hand = [sorted(range(size), key=lambda v: (-row[v], v))[:k] for row in batch.tolist()]
    assert ids.tolist() == by_hand
    for rows in EVERYONE:
        found, scores = rows.top_k(batch, k)
        assert (found.dtype, scores.dtype) == (np.int32, np.float32)
        assert found.tobytes() == ids.tobytes()
        assert scores.tobytes() == values.tobytes()
        np.testing.assert_array_equal(rows.log_softmax(batch, chosen), want)


@pytest.mark.parametrize("position", [0, 1, 4095, 2**40])
def test_the_noise_of_single_ids(position: int) -> None:
    ids = [0, 1, 2, 3, 4, 5, 49151, 150_000, 7, 7]
    for seed in (0, 1, 2**64 - 1):
        want = noise.gumbel(seed, position, 150_001)[ids].tolist()
        assert NumpyRows().gumbel(seed, position, ids) == want
        assert NumpyRows().gumbel(seed, position, []) == []
        for rows in EVERYONE:
            assert rows.gumbel(seed, position, ids) == want
            assert rows.gumbel(seed, position, []) == []
            with pytest.raises(ValueError, match="ids must be >= 0, got -3"):
                rows.gumbel(seed, position, [5, -3])


def test_log_softmax_is_the_samplers() -> None:
    batch = np.stack([make_row("normal", 3000, seed) for seed in range(4)])
    greedy = SamplingParams(temperature=0.0, logprobs=0).resolve({})
    choices = [SPECIFICATION.choose(row, greedy, SamplerState(0), 0) for row in batch]
    ids = np.array([choice.token_id for choice in choices])
    for rows in [NumpyRows(), *EVERYONE]:
        assert rows.log_softmax(batch, ids).tolist() == [one.logprobs.logprob for one in choices]


def test_bad_questions_are_errors_that_name_the_trouble() -> None:
    batch = np.stack([make_row("normal", 200, seed) for seed in range(3)])
    spoiled = batch.copy()
    spoiled[1, 7] = np.nan
    for rows in [NumpyRows(), *EVERYONE]:
        for k in (0, 201):
            with pytest.raises(ValueError, match="k must be between 1 and the 200"):
                rows.top_k(batch, k)
        with pytest.raises(ValueError, match="float32"):
            rows.top_k(batch.astype(np.float64), 3)
        with pytest.raises(ValueError, match="row 1 holds NaN"):
            rows.top_k(spoiled, 3)
        for ids in ([0, 1], [0, 1, 200], [-1, 0, 0]):
            with pytest.raises(ValueError, match="ids must hold"):
                rows.log_softmax(batch, np.array(ids))
        assert np.isnan(rows.log_softmax(spoiled, np.array([0, 0, 0]))).tolist() == [0, 1, 0]
    infinite = batch.copy()
    infinite[:, [3, 9]] = np.inf
    infinite[:, 10:] = -np.inf
    for rows in EVERYONE:
        want = NumpyRows().top_k(infinite, 60)[0]
        assert rows.top_k(infinite, 60)[0].tolist() == want.tolist()
        assert want[0, :2].tolist() == [3, 9]


def test_a_host_that_flushes_denormals_changes_nothing() -> None:
    torch = pytest.importorskip("torch")
    row = make_row("tiny", 700, 1)
    params = SamplingParams(temperature=1e-44, logprobs=2).resolve({})
    ask = row, params, SamplerState(4), 2
    want = SPECIFICATION.choose(*ask)
    assert torch.set_flush_denormal(True)
    try:
        found = [CompiledSampler(rows).choose(*ask) for rows in EVERYONE]
    finally:
        torch.set_flush_denormal(False)
    assert all(one == want for one in found)
