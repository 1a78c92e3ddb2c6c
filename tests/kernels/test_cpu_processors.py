"""Compiled processors and filters have the bits of sample/: every parameter, alone and together.

Requests live for a few tokens, so that their state (counts, matches, mu) is what both are asked
with; whole processed rows are compared, not only what is chosen from them.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cpu_sampling import EVERYONE, KINDS, SPECIFICATION, make_row, outcome, temperatures

from foreword.protocols import ADD, MASK, ONLY, REPEAT, Edit, RowAsk
from foreword.sample.compiled import CompiledSampler
from foreword.sample.edits import edit_row
from foreword.sample.sampler import SamplerState
from foreword.types import MAX_SEED, Request, SamplingParams

pytestmark = pytest.mark.skipif(not EVERYONE, reason="the extension is not built")

SIZES = [5, 64, 257, 1025, 4097]
ids = st.integers(0, 40)
filters = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.sampled_from([1, 2, 5, 40, 2000]),
        "top_p": st.floats(1e-6, 1.0),
        "min_p": st.floats(0.0, 1.0),
        "typical_p": st.one_of(st.floats(1e-6, 1.0), st.just(1.0 - 2.0**-53)),
        "xtc_probability": st.sampled_from([0.5, 1.0]),
        "xtc_threshold": st.floats(0.0, 0.6),
    },
)
steered = st.fixed_dictionaries(
    {"mirostat_mode": st.just(2)},
    optional={
        "mirostat_tau": st.floats(1e-3, 1000.0),
        "mirostat_eta": st.one_of(st.floats(0.0, 1.0), st.just(1000.0)),
    },
)
rules = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.one_of(st.floats(0.5, 2.0), st.sampled_from([1e-9, 1e9])),
        "presence_penalty": st.floats(-2.0, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
        "dry_multiplier": st.sampled_from([0.8, 5.0, 1e9]),
        "dry_base": st.sampled_from([1.0, 1.75, 1e9]),
        "dry_allowed_length": st.integers(1, 3),
        "dry_penalty_last_n": st.sampled_from([-1, 0, 1, 5, 100]),
        "logit_bias": st.dictionaries(st.integers(0, 5000), st.floats(-100.0, 100.0), max_size=9),
        "allowed_token_ids": st.lists(st.integers(0, 5000), min_size=1, max_size=60),
        "min_tokens": st.integers(0, 5),
    },
)


def requests(
    fields: dict[str, Any], prompt: list[int], words: list[list[int]], seed: int
) -> Request:
    params = SamplingParams(**fields, max_tokens=8).resolve({})
    return Request(
        "",
        tuple(prompt),
        params,
        seed,
        eos_ids=frozenset({3, 7}),
        bad_words=tuple(map(tuple, words)),
        dry_breakers=frozenset({1}),
    )


@settings(max_examples=120, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    size=st.sampled_from(SIZES),
    content=st.integers(0, 2**32),
    fields=st.tuples(
        st.fixed_dictionaries(
            {"temperature": temperatures, "logprobs": st.sampled_from([None, 3])}
        ),
        st.one_of(filters, filters, steered),
        rules,
    ),
    prompt=st.lists(ids, max_size=40),
    words=st.lists(st.lists(ids, min_size=1, max_size=3), max_size=3),
    seed=st.integers(0, MAX_SEED),
)
def test_every_bit_is_the_specifications(
    kind: str,
    size: int,
    content: int,
    fields: tuple[dict[str, Any], ...],
    prompt: list[int],
    words: list[list[int]],
    seed: int,
) -> None:
    request = requests(fields[0] | fields[1] | fields[2], prompt, words, seed)
    samplers = [SPECIFICATION, *(CompiledSampler(rows) for rows in EVERYONE)]
    states = [sampler.begin(request) for sampler in samplers]
    for position in range(3):
        row = make_row(kind, size, content + position)
        before = row.tobytes()
        found = []
        for sampler, state in zip(samplers, states, strict=True):
            ask = row, request.params, state, position
            shown = outcome(sampler.open_row, *ask), outcome(sampler.rank, *ask, 4)
            open_row = b"" if shown[0][:5] == "error" else sampler.open_row(*ask).tobytes()
            found.append((outcome(sampler.choose, *ask), open_row, *shown))
        assert found.count(found[0]) == len(found)
        assert row.tobytes() == before
        if found[0][0].startswith("error"):
            return
        chosen = SPECIFICATION.choose(row, request.params, states[0], position).token_id
        steers = []
        for sampler, state in zip(samplers, states, strict=True):
            with np.errstate(all="ignore"):
                sampler.advance(row, state, chosen)
            steers.append(state.mirostat and state.mirostat.mu)
        assert steers.count(steers[0]) == len(steers)


@pytest.mark.parametrize("size", [49152, 151936])
@pytest.mark.parametrize(
    "fields",
    [
        {"typical_p": 0.9},
        {"typical_p": 0.999, "top_p": 0.99},
        {"xtc_probability": 1.0, "xtc_threshold": 0.01},
        {"mirostat_mode": 2},
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_whole_vocabularies(size: int, fields: dict[str, Any]) -> None:
    prompt = np.random.default_rng(1).integers(0, size, 600).tolist()
    request = requests({"temperature": 0.9, **fields}, prompt, [], 9)
    for content, kind in enumerate(("normal", "wide", "flat")):
        row = make_row(kind, size, content)
        state = SPECIFICATION.begin(request)
        want = SPECIFICATION.choose(row, request.params, state, content)
        whole = SPECIFICATION.open_row(row, request.params, state, content)
        for rows in EVERYONE:
            sampler = CompiledSampler(rows)
            state = sampler.begin(request)
            assert sampler.choose(row, request.params, state, content) == want
            assert (
                sampler.open_row(row, request.params, state, content).tobytes() == whole.tobytes()
            )


@pytest.mark.parametrize("kind", [ADD, REPEAT, MASK, ONLY])
def test_an_edit_is_what_it_says(kind: int) -> None:
    """By hand, with ids outside the row; the row itself stays."""
    row = np.array([2.0, -2.0, 1.0, 0.5, -0.0], dtype=np.float32)
    edit = Edit(kind, np.array([9, 0, 1]), np.array([7.0, 0.25, -1.0], dtype=np.float32), 2.0)
    gone = -np.inf
    want = {
        ADD: [2.25, -3.0, 1.0, 0.5, 0.0],
        REPEAT: [1.0, -4.0, 1.0, 0.5, 0.0],
        MASK: [gone, gone, 1.0, 0.5, 0.0],
        ONLY: [2.0, -2.0, gone, gone, gone],
    }[kind]
    by_rule = row.copy()
    edit_row(by_rule, edit)
    assert by_rule.tolist() == want
    for rows in EVERYONE:
        fault, found = rows.open_row(RowAsk(row, row, 0, 0, 0.0, edits=(edit,)))
        assert (fault, found.tolist()) == (0, want)
    assert row[0] == 2.0


class Even:
    """As a grammar's: only ids of the parity of the last one, but for a first free choice."""

    def __init__(self) -> None:
        self.last: int | None = None

    def begin(self) -> Even:
        return Even()

    def apply(self, row: np.ndarray, position: int) -> None:
        if self.last is not None:
            row[1 - self.last % 2 :: 2] = -np.inf

    def advance(self, row: np.ndarray, token: int) -> None:
        self.last = token


def test_python_rules_and_callables_come_before_the_edits() -> None:
    """A user's callable, a grammar's rule and native edits on one row, in the order of docs; a deep
    copy of a state goes its own way."""
    fields = {
        "temperature": 1.0,
        "top_p": 0.9,
        "presence_penalty": 1.5,
        "allowed_token_ids": list(range(50)),
        "logits_processors": [lambda ids, row: row[::-1]],
    }
    request = replace(requests(fields, [1, 2], [], 5), grammar=Even())
    for rows in EVERYONE[-1:]:
        samplers = [SPECIFICATION, CompiledSampler(rows)]
        states = [sampler.begin(request) for sampler in samplers]
        parity = None
        for position in range(6):
            row = make_row("normal", 65, position)
            tokens = []
            for sampler, state in zip(samplers, states, strict=True):
                aside = copy.deepcopy(state)
                token = sampler.choose(row, request.params, state, position).token_id
                sampler.advance(row, aside, token ^ 1)
                assert sampler.choose(row, request.params, state, position).token_id == token
                sampler.advance(row, state, token)
                tokens.append(token)
            assert tokens[0] == tokens[1] < 50
            assert parity in (None, tokens[0] % 2)
            parity = tokens[0] % 2


def test_the_state_of_a_request_that_asks_for_nothing_is_empty() -> None:
    assert SPECIFICATION.begin(requests({}, [1, 2], [], 4)) == SamplerState(4)
