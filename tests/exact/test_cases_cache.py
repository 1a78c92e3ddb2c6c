"""Cases of part H: prefix hits, chunks, preemption, windows; the KV cache is never seen in the
text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Job, Rig, drive, equal, prompt, rig

import apparatus
from foreword.draft.scripted import chain, right_by_chance, right_until

slow = pytest.mark.slow
ONE_BRANCH = {"num_branches": 1, "confidence_threshold": 0.0}
CHUNK = 16


def prefix_tree(depth: int) -> Iterator[tuple[int, ...]]:
    """Prompts that part ways at every level, with 80 % and more in common below it."""
    trunk = prompt(40, 99)
    for level in range(depth):
        shared = trunk[: 10 * (level + 1)]
        for branch in range(2):
            yield (*shared, *prompt(3, 10 * level + branch))
            yield (*shared, *prompt(3, 10 * level + branch), *prompt(5, level))


@pytest.mark.parametrize("block", [1, 16])
@pytest.mark.parametrize("count", [12, pytest.param(30, marks=slow)])
def test_v53_prefix_tree_in_a_fragmented_pool(block: int, count: int) -> None:
    """V53: requests over a prefix tree of depth 4 in random order, two at a time, K 4, a pool so
    small that pages come back out of order."""
    target, k = rig(), 4
    chance = random.Random(block)
    prompts = list(prefix_tree(4))
    jobs = [Job(chance.choice(prompts), 6, temperature=n % 2, seed=n % 2) for n in range(count)]
    script = chain(target.answers(jobs, k), k, right_by_chance(0.6), target.vocab_size)
    slots = 136 if block == 1 else 9 * block
    engine = target.engine(script=script, k=k, batch=2, block=block, slots=slots, rows=48)
    results = drive(engine, [(place // 2, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, results)
    engine.parts.kv.check()
    assert engine.parts.kv.prefix_hits > 0


@pytest.mark.parametrize("block", [1, 4])
def test_v54_rejected_drafts_and_aborts_poison_nothing(block: int) -> None:
    """V54: every draft is wrong; the answer comes back as the next prompt: with the cache = cold.
    A request aborted mid-way and sent again: the same."""
    target, k = rig(), 4
    job = Job(prompt(13), 11, temperature=1.0)
    script = chain(target.answers([job] * 9, k), k, right_until(0), target.vocab_size)
    engine = target.engine(script=script, k=k, batch=2, block=block)
    (first,) = drive(engine, [(0, 0, job)])
    equal(target.plain(job), first)
    turn = replace(job, prompt=(*job.prompt, *first.token_ids, 65), max_tokens=8)
    hits = engine.parts.kv.prefix_hits
    (second,) = drive(engine, [(0, 1, turn)])
    equal(target.plain(turn), second)
    assert engine.parts.kv.prefix_hits - hits >= (len(turn.prompt) - 2) // block * block
    for steps in (1, 2, 5):
        cut = engine.add(replace(job, prompt=prompt(21, steps)).request("2"))
        for _ in range(steps):
            engine.step()
        emitted = cut.token_ids[:]
        engine.abort(cut)
        assert cut.finish_reason == "abort"
        engine.parts.kv.check()
        again = replace(job, prompt=tuple(emitted), max_tokens=5)
        (result,) = drive(engine, [(0, 3, again)])
        equal(target.plain(again), result, f"after an abort at step {steps}")


NEAR = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1)


@pytest.mark.parametrize("block", [16, pytest.param(4, marks=slow), pytest.param(1, marks=slow)])
def test_v55_every_cached_and_total_length_near_a_chunk(block: int) -> None:
    """V55: `cached` tokens of a prompt of `total` ran before, chunks of 16: no empty last chunk,
    and a fully cached prompt still computes a token."""
    target = rig()
    engine = target.engine("ngram", k=4, batch=2, rows=CHUNK, block=block, slots=2048)
    ids = prompt(70, 5)
    for cached in (*NEAR, 2 * CHUNK):
        for total in (n for n in (*NEAR[1:], 2 * CHUNK, 2 * CHUNK + 1) if n >= cached):
            head = tuple((token + 7 * cached + 13 * total) % 256 for token in ids)
            warm, job = (Job(head[:n], 3, logprobs=None) for n in (max(1, cached), total))
            if cached:
                drive(engine, [(0, 0, replace(warm, max_tokens=1))])
            (result,) = drive(engine, [(0, 1, job)])
            equal(target.plain(job), result, f"cached {cached} of {total}")
            engine.parts.kv.check()


@pytest.mark.parametrize("runs", [3, pytest.param(20, marks=slow)])
@pytest.mark.parametrize("prefix", [True, False])
def test_v56_cold_prefill_in_chunks(runs: int, prefix: bool) -> None:
    """V56: a nonce at the start forces a cold prefill of more than three chunks; first 20
    tokens."""
    target = rig()
    engine = target.engine("ngram", k=4, rows=CHUNK, prefix=prefix, slots=1024)
    for nonce in range(runs):
        job = Job((nonce, *prompt(3 * CHUNK + 5, 77)), 20, temperature=nonce % 2)
        (result,) = drive(engine, [(0, 0, job)])
        equal(target.plain(job), result, f"nonce {nonce}")


def test_v57_acceptance_survives_prefix_hits_and_eviction() -> None:
    """V57: the same prompt three times, then once more after others pushed it out of the cache: all
    drafts of D_self are accepted every time."""
    target, k = rig(), 4
    job = Job(prompt(40), 15, temperature=1.0)
    engine = target.engine(draft=target, options=ONE_BRANCH, k=k, batch=2, slots=160)
    rounds = [[job]] * 3 + [[Job(prompt(50, n), 5) for n in range(6)], [job]]
    for number, jobs in enumerate(rounds):
        results = drive(engine, [(0, place, one) for place, one in enumerate(jobs)])
        target.same(jobs, results)
        for result in results:
            assert result.stats.num_accepted == result.stats.num_drafted > 0, number
        assert engine.parts.kv.prefix_hits >= (32 if number else 0)


@pytest.mark.parametrize("rows", [20, 64])
def test_v58_decode_while_prompts_are_prefilled_in_chunks(rows: int) -> None:
    """V58: one long decode, and a long prompt every ten steps: all of them as alone."""
    target = rig()
    decode = Job(prompt(4), 48, temperature=1.0)
    jobs = [decode, *(Job(prompt(150 + n, n), 3, seed=n) for n in range(3))]
    engine = target.engine("ngram", k=4, batch=4, rows=rows)
    results = drive(engine, [(10 * place, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, results)


class Watched:
    """A target that checks every id it is fed."""

    def __init__(self, inner: Rig) -> None:
        self._model, self.vocab_size, self.kernels = (
            inner.model,
            inner.vocab_size,
            inner.model.kernels,
        )

    def forward(self, batch: Any, kv: Any) -> np.ndarray:
        assert (batch.token_ids >= 0).all()
        assert (batch.token_ids < self.vocab_size).all()
        return self._model.forward(batch, kv)


@pytest.mark.parametrize("orders", [8, pytest.param(200, marks=slow)])
@pytest.mark.parametrize("cause", ["memory", "priority"])
def test_v59_preemption_drops_drafts_and_resumes(orders: int, cause: str) -> None:
    """V59: room (or seats) for 2 of 4 requests, random arrivals; no stale draft, no placeholder id
    reaches the model, and every request is as un-preempted."""
    target, k = rig(), 4
    jobs = [Job(prompt(9 + 6 * n, n), 10, temperature=n % 2, seed=n) for n in range(4)]
    script = chain(target.answers(jobs, k), k, right_by_chance(0.6), target.vocab_size)
    preempted = 0
    for turn in range(orders):
        chance = random.Random(turn)
        memory = cause == "memory"
        engine = target.engine(
            script=script,
            k=k,
            block=4,
            batch=4 if memory else 2,
            slots=4 * 17 if memory else 1024,
            rows=24,
            model=Watched(target),
        )
        timed = [
            (chance.randrange(6), n, replace(job, priority=0 if memory else chance.randrange(3)))
            for n, job in enumerate(jobs)
        ]
        target.same(jobs, drive(engine, timed), f"order {turn}")
        engine.parts.kv.check()
        preempted += engine.parts.scheduler.num_preemptions
    assert preempted > 0


@pytest.mark.parametrize("architecture", ["mistral", pytest.param("qwen2", marks=slow)])
@pytest.mark.parametrize(
    "lengths", [(3, 7, 8, 9, 20), pytest.param(tuple(range(1, 21)), marks=slow)]
)
def test_v60_sliding_window_of_eight(architecture: str, lengths: tuple[int, ...]) -> None:
    """V60: prompts around the window, 40 tokens, K 4: right, wrong and half right drafts roll back
    at every step around the window's edge."""
    target, k = rig(architecture=architecture, sliding_window=8), 4
    jobs = [Job(prompt(n, n), 40, temperature=n % 2, seed=n) for n in lengths]
    answers = target.answers(jobs, k)
    for wrong in (0, 2):
        script = chain(answers, k, right_until(wrong), target.vocab_size)
        target.exact(jobs, script=script, k=k, block=4, batch=5)
    target.exact(jobs, draft=rig(noise=apparatus.NOISE), k=k, tree="best_first", batch=3)
    limited = [replace(job, max_tokens=9) for job in jobs]
    target.exact(limited, method="ngram", k=k, store="dense", rows=16)


def test_v60_window_prefix_hits_are_complete() -> None:
    """V60: under a window a hit still finds every block of it: warm = cold."""
    target = rig(architecture="mistral", sliding_window=8)
    engine = target.engine("ngram", k=4, block=4)
    for length in (9, 16, 17, 33):
        job = Job(prompt(33, 3)[:length], 6)
        for turn in range(2):
            (result,) = drive(engine, [(0, turn, job)])
            equal(target.plain(job), result, f"length {length} turn {turn}")
    assert engine.parts.kv.prefix_hits > 0


def test_v66_v68_ragged_rows_over_forty_steps() -> None:
    """V66, V68: prompts of 2 and 40 tokens side by side for 40 steps, with the EOS id at the end
    and inside of a prompt: positions count content, nothing outside a row is visible."""
    target = rig()
    ends = frozenset({apparatus.ENDOFTEXT})
    jobs = [
        Job((5, apparatus.ENDOFTEXT), 40, ends=ends),
        Job((*prompt(20), apparatus.ENDOFTEXT, *prompt(19)), 40, ends=ends),
    ]
    target.exact(jobs, batch=2, prefix=False)
    target.exact(jobs, method="ngram", k=4, batch=2, prefix=False)


def test_v67_pad_or_eos_ids_inside_a_prompt_are_content() -> None:
    """V67: a prompt that is the EOS id, ends with it, or holds it; alone and beside a longer
    one."""
    target = rig()
    eos = apparatus.ENDOFTEXT
    prompts = [(eos,), (1, 2, eos), (1, eos, 2), (1, 2, 3), (eos, eos, eos), prompt(60)]
    jobs = [Job(ids, 10, ends=frozenset({eos})) for ids in prompts]
    target.exact(jobs, method="ngram", k=3, batch=6)
    outputs = {target.plain(job).token_ids for job in jobs}
    assert len(outputs) == len(jobs)  # the ids do count
