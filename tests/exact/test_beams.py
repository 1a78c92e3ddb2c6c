"""Beam search on a model: the tokens and the scores, every bit, of a loop that reads each beam's
whole text anew and sorts the whole vocabulary; whatever the backend, the store and the company."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from harness import Rig, count, open_llm, prompt

import apparatus
from foreword import LLM, BeamSearchParams, SamplingParams
from foreword.errors import ConfigError, KernelUnavailable, RequestError
from foreword.kv import dense
from foreword.kv.pool import KVPool
from foreword.model.batch import Batch, Segment
from foreword.sample import logprobs
from foreword.sample.named import NamedSamplers
from foreword.sample.sampler import GumbelSampler

PROMPTS = [prompt(5), prompt(17, 1), prompt(33, 2), prompt(16, 3)]
WAYS: list[dict[str, Any]] = [
    {"beam_width": 1},
    {"beam_width": 3, "length_penalty": 0.0, "early_stopping": "never"},
    {"beam_width": 4, "early_stopping": True},
    {"beam_width": 5, "length_penalty": 2.0},
]
BACKENDS = ["reference", "torch", "cpu"]
Output = tuple[tuple[int, ...], str, str, str]  # ids, score, normalised score, finish reason


@cache
def rig(backend: str) -> Rig:
    """T, with end tokens that come often: every eighth id."""
    ends = tuple(range(0, 470, 8))
    path = apparatus.tiny_checkpoint(max_position=512, eos_ids=ends)
    try:
        return Rig(open_llm(path, backend=backend))
    except KernelUnavailable:
        pytest.skip(f"backend {backend} is not built here")


def last_row(model: Any, ids: tuple[int, ...]) -> np.ndarray:
    """Logits after `ids`, read in one chunk into an empty store."""
    shape = model.config
    heads = shape.num_kv_heads, shape.head_dim
    pool = KVPool(shape.num_layers, len(ids) + 1, *heads, torch.float32, "cpu")
    store = dense.make(pool)
    store.begin("x", ids)
    store.reserve("x", len(ids))
    with model.kernels.step_guard():
        return model.forward(Batch.of([Segment.chain(ids, store.slots("x"))]), store)[0].copy()


def naive(rig: Rig, ids: tuple[int, ...], params: BeamSearchParams) -> list[Output]:
    ends = frozenset() if params.ignore_eos else rig.checkpoint.eos_ids
    ends |= frozenset(params.stop_token_ids or ())
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    complete: list[tuple[float, int, tuple[int, ...], float]] = []
    for length in range(1, params.max_tokens + 1):
        ways = []
        for place, (tokens, total) in enumerate(beams):
            row = last_row(rig.model, (*ids, *tokens))
            every = logprobs.raw(row, float(row.max()), 0, len(row)).top
            ways += [(total + added, place, token, tokens) for token, added in every]
        ways.sort(key=lambda way: (-way[0], way[1], way[2]))
        beams = []
        for rank, (total, _, token, tokens) in enumerate(ways):
            over = token in ends or length == params.max_tokens
            if over and rank < params.beam_width:
                value = total / float(length) ** params.length_penalty
                complete.append((value, len(complete), (*tokens, token), total))
            if not over and len(beams) < params.beam_width:
                beams.append(((*tokens, token), total))
        complete.sort(key=lambda one: (-one[0], one[1]))
        if len(complete) >= params.beam_width and beams:
            long = params.early_stopping == "never" and params.length_penalty > 0
            size = params.max_tokens if long else length
            hope = beams[0][1] / float(size) ** params.length_penalty
            if params.early_stopping is True or hope <= complete[params.beam_width - 1][0]:
                break
    return [
        (tokens, total.hex(), value.hex(), "stop" if tokens[-1] in ends else "length")
        for value, _, tokens, total in complete[: params.n or params.beam_width]
    ]


def outputs(answer: Any) -> list[Output]:
    assert answer.error is None, answer.error
    found = []
    for place, one in enumerate(answer.sequences):
        assert one.index == place
        assert one.tokens == answer.prompt_token_ids + one.token_ids
        added = [row[token].logprob for row, token in zip(one.logprobs, one.token_ids, strict=True)]
        total = 0.0
        for value in added:
            total += value
        assert total == one.cum_logprob
        count(1, len(one.token_ids), len(added))
        ids = tuple(one.token_ids)
        found.append((ids, one.cum_logprob.hex(), one.score.hex(), one.finish_reason))
    return found


@cache
def expected(backend: str, place: int, way: int, max_tokens: int = 7) -> list[Output]:
    params = BeamSearchParams(**WAYS[way], max_tokens=max_tokens)
    return naive(rig(backend), PROMPTS[place], params)


def door(rig: Rig, **setting: Any) -> LLM:
    return rig.door(rig.engine(sampler=NamedSamplers(GumbelSampler()), **setting))


def settled(llm: LLM) -> None:
    scheduler, kv = llm.engine.parts.scheduler, llm.engine.parts.kv
    assert not scheduler.has_work
    kv.check()
    assert kv.num_free_tokens == kv.capacity
    assert llm._live == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_beams_are_those_of_the_naive_loop(backend: str) -> None:
    """All prompts and ways in one batch, on the backend and on its own naive loop."""
    llm = door(rig(backend))
    pairs = [(place, way) for place in range(2) for way in range(len(WAYS))]
    params = [BeamSearchParams(**WAYS[way], max_tokens=7) for _, way in pairs]
    answers = llm.beam_search([PROMPTS[place] for place, _ in pairs], params)
    reasons = set()
    for answer, pair in zip(answers, pairs, strict=True):
        found = outputs(answer)
        assert found == expected(backend, *pair), pair
        reasons |= {reason for *_, reason in found}
    assert reasons == {"stop", "length"}
    settled(llm)


SETTINGS: dict[str, dict[str, Any]] = {
    "narrow": {"batch": 2, "rows": 3},
    "dense": {"store": "dense"},
    "uncached": {"prefix": False},
    "pages of 1": {"block": 1},
    "tight": {"slots": 6 * 16, "batch": 4},
    "drafted": {"method": "ngram"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_setting_moves_a_beam(name: str) -> None:
    """Two searches, and two generations whose tokens do not move either."""
    one = rig("torch")
    llm = door(one, **SETTINGS[name])
    greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    alone = [llm.generate(ids, greedy)[0].outputs[0].token_ids for ids in PROMPTS[2:]]
    streams = [llm.stream(ids, greedy) for ids in PROMPTS[2:]]
    for stream in streams:
        next(stream)
    params = [BeamSearchParams(**WAYS[way], max_tokens=7) for way in (2, 3)]
    answers = llm.beam_search(PROMPTS[:2], params)
    assert [outputs(answer) for answer in answers] == [
        expected("torch", place, way) for place, way in ((0, 2), (1, 3))
    ]
    rest = [list(stream)[-1][1].sequence.output_ids for stream in streams]
    assert rest == alone
    if name == "tight":
        assert llm.engine.parts.scheduler.num_preemptions > 0
    settled(llm)


def test_a_step_computes_one_row_for_each_beam() -> None:
    """What the store keeps is found by every beam that goes on from it."""
    one = rig("torch")
    llm = door(one)
    rows, forward = [], one.model.forward

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(one.model, name)

        def forward(self, batch: Batch, kv: Any) -> Any:
            rows.append(batch.num_rows)
            return forward(batch, kv)

    llm.engine.parts = replace(llm.engine.parts, model=Counting())
    params = BeamSearchParams(4, max_tokens=20, ignore_eos=True)
    llm.beam_search(PROMPTS[1], params)
    assert rows == [len(PROMPTS[1])] + [4] * 19


def test_best_first_gives_the_outputs_of_beam_search() -> None:
    llm = door(rig("torch"))
    fewer = []
    for penalty in (0.0, 1.0):
        same = {"beam_width": 4, "max_tokens": 9, "early_stopping": "never"}
        beam = BeamSearchParams(**same, length_penalty=penalty)
        best = BeamSearchParams(**same, length_penalty=penalty, best_first=True)
        single = BeamSearchParams(**same, length_penalty=penalty, best_first=True, n=1)
        prompts = PROMPTS[:3]
        plain = llm.beam_search(prompts, beam)
        for params in (best, single):
            for left, right in zip(plain, llm.beam_search(prompts, params), strict=True):
                assert outputs(left)[: params.n] == outputs(right)
                fewer.append(_expansions(left) - _expansions(right))
    assert min(fewer[:6]) >= 0
    assert sum(fewer) > 0
    settled(llm)


def _expansions(answer: Any) -> int:
    count: int = answer.sequences[0].metrics["beam_search"]["num_expansions"]
    return count


def test_stop_ids_end_beams_and_ignored_ends_do_not() -> None:
    one = rig("torch")
    llm = door(one)
    free = BeamSearchParams(4, max_tokens=6, ignore_eos=True)
    found = llm.beam_search(PROMPTS[0], free)[0]
    assert outputs(found) == naive(one, PROMPTS[0], free)
    assert {seq.finish_reason for seq in found.sequences} == {"length"}
    stop = found.sequences[0].token_ids[1]
    params = BeamSearchParams(4, max_tokens=6, ignore_eos=True, stop_token_ids=[stop])
    stopped = llm.beam_search(PROMPTS[0], params)[0]
    assert outputs(stopped) == naive(one, PROMPTS[0], params)
    assert stop in {seq.stop_reason for seq in stopped.sequences}
    cut = BeamSearchParams(4, max_tokens=6, ignore_eos=True, n=2)
    assert outputs(llm.beam_search(PROMPTS[0], cut)[0]) == outputs(found)[:2]


def test_the_widest_search() -> None:
    llm = door(rig("torch"))
    answer = llm.beam_search(PROMPTS[0], BeamSearchParams(128, max_tokens=2))[0]
    assert len(answer.sequences) == 128
    assert len({tuple(seq.token_ids) for seq in answer.sequences}) == 128


def test_an_interrupt_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = door(rig("torch"))
    params = BeamSearchParams(3, max_tokens=6)
    before = outputs(llm.beam_search(PROMPTS[0], params)[0])
    accept, calls = llm.engine._accept, iter(range(100))

    def interrupted(*arguments: Any) -> Any:
        if next(calls) == 3:
            raise KeyboardInterrupt
        return accept(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, "_accept", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.beam_search(PROMPTS[:2], params)
    settled(llm)
    assert outputs(llm.beam_search(PROMPTS[0], params)[0]) == before


def test_searches_of_several_threads_share_the_engine() -> None:
    llm = door(rig("torch"))
    params = BeamSearchParams(**WAYS[2], max_tokens=7)
    found: dict[int, list[Output]] = {}

    def search(place: int) -> None:
        found[place] = outputs(llm.beam_search(PROMPTS[place], params)[0])

    threads = [threading.Thread(target=search, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {place: expected("torch", place, 2) for place in range(2)}
    settled(llm)


def test_what_cannot_run_is_refused_before_anything_does() -> None:
    one = rig("torch")
    tight = door(one, slots=48)
    with pytest.raises(RequestError, match="KV positions"):
        tight.beam_search(PROMPTS[:2], BeamSearchParams(2, max_tokens=40))
    with pytest.raises(ConfigError, match="2 prompts but 1 params"):
        tight.beam_search(PROMPTS[:2], [BeamSearchParams(2)])
    with pytest.raises(RequestError, match="prompt 1"):
        tight.beam_search([PROMPTS[0], [99999]], BeamSearchParams(2))
    settled(tight)


def test_a_row_that_is_not_finite_ends_its_search_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = rig("torch")
    llm = door(one)
    forward: Callable[..., Any] = one.model.forward
    marked = PROMPTS[1][0]

    def broken(batch: Batch, kv: Any) -> Any:
        rows = forward(batch, kv)
        place = 0
        for segment in batch.segments:
            wanted = len(segment.logit_rows)
            if segment.cached == 0 and segment.tokens[0] == marked and wanted:
                rows[place : place + wanted] = np.nan
            place += wanted
        return rows

    monkeypatch.setattr(one.model, "forward", broken)
    params = BeamSearchParams(**WAYS[2], max_tokens=7)
    good, bad = llm.beam_search(PROMPTS[:2], params)
    assert outputs(good) == expected("torch", 0, 2)
    assert bad.sequences == []
    assert "NaN" in bad.error
    settled(llm)


class Narrow:
    """A form: even ids only, and after two of them none at all. Its state is the tokens emitted."""

    def begin(self) -> Narrow:
        fresh = Narrow()
        fresh.seen = []
        return fresh

    def apply(self, row: np.ndarray, position: int) -> None:
        assert position == len(self.seen), "the beam's tokens were not told"
        row[1::2] = -np.inf
        if position == 2:
            row[:] = -np.inf

    def advance(self, row: np.ndarray, token: int) -> None:
        self.seen.append(token)


class Shifted(Narrow):
    """Adds 3 to one logit."""

    def begin(self) -> Shifted:
        fresh = Shifted()
        fresh.seen = []
        return fresh

    def apply(self, row: np.ndarray, position: int) -> None:
        assert position == len(self.seen)
        row[11] += np.float32(3.0)


def ruled(monkeypatch: pytest.MonkeyPatch, llm: LLM, grammar: Any) -> LLM:
    made = llm.asks.beam
    monkeypatch.setattr(llm.asks, "beam", lambda *given: replace(made(*given), grammar=grammar))
    return llm


def test_masks_say_what_may_come_and_scores_stay_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ruled(monkeypatch, door(rig("torch")), Narrow())
    params = BeamSearchParams(4, max_tokens=2, ignore_eos=True)
    for one in llm.beam_search(PROMPTS[0], params)[0].sequences:
        ids = one.token_ids
        assert not any(token % 2 for token in ids)
        total = 0.0
        for place, token in enumerate(ids):
            row = last_row(rig("torch").model, (*PROMPTS[0], *ids[:place]))
            total += logprobs.raw(row, float(row.max()), token, 0).logprob
        assert total == one.cum_logprob
    dead = llm.beam_search(PROMPTS[0], BeamSearchParams(4, max_tokens=3, ignore_eos=True))[0]
    assert dead.sequences == []
    assert "no token" in dead.error
    settled(llm)


def test_a_moved_logit_counts_as_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = ruled(monkeypatch, door(rig("torch")), Shifted())
    params = BeamSearchParams(128, max_tokens=1)
    row = last_row(rig("torch").model, PROMPTS[0])
    for one in llm.beam_search(PROMPTS[0], params)[0].sequences:
        (token,) = one.token_ids
        scale = -logprobs.raw(row, float(row.max()), int(row.argmax()), 0).logprob
        logit = row[token] + np.float32(3.0 if token == 11 else 0.0)
        assert one.cum_logprob == (float(logit) - float(row.max())) - scale
