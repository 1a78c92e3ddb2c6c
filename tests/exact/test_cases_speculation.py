"""Cases of part A: speculation on or off, whatever the drafter, gives the same bits.

Grid G: K x drafter x batch x prompt lengths x max_tokens, chains and trees of 8 nodes per sequence,
greedy and temperature 1 mixed in every batch. CI keeps a slice of it; the whole is marked slow.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Job, Result, Rig, drive, equal, plain_with, prompt, rig

import apparatus
from foreword.draft.scripted import Script, chain, right_until
from foreword.sample.sampler import GumbelSampler
from foreword.types import Choice, SamplingParams

slow = pytest.mark.slow
DRAFTERS = ("self", "noise", "anti", "rand")
LENGTHS = (1, 2, 7, 31, 64)


def jobs_for(lengths: tuple[int, ...], limits: tuple[int, ...]) -> list[Job]:
    """Every length with every max_tokens; greedy and sampled in turn."""
    return [
        Job(prompt(length), limit, temperature=float(number % 2))
        for number, (length, limit) in enumerate(itertools.product(lengths, limits))
    ]


def drafting(target: Rig, name: str, k: int, jobs: list[Job], tree: str) -> dict[str, Any]:
    """The settings of one of the four drafters."""
    branches = {"num_branches": 1 if tree == "chain" else 3, "confidence_threshold": 0.0}
    if name == "anti":
        answers = target.answers(jobs, extra=k)
        return {"script": chain(answers, k, right_until(0), target.vocab_size)}
    seed, noise = {"self": (0, 0.0), "noise": (0, apparatus.NOISE), "rand": (1, 0.0)}[name]
    draft = target if name == "self" else rig(seed=seed, noise=noise)
    return {"draft": draft, "options": branches}


def grid_g(k: int, name: str, batch: int, tree: str, jobs: list[Job]) -> list[Result]:
    target = rig()
    nodes = k * batch if tree == "chain" else 8 * batch
    setting = drafting(target, name, k, jobs, tree)
    results = target.exact(jobs, k=k, batch=batch, tree=tree, nodes=nodes, **setting)
    for job, result in zip(jobs, results, strict=True):
        assert len(result.token_ids) == len(result.logprobs) == job.max_tokens  # V27
        assert result.stats.num_emitted == job.max_tokens
    return results


@pytest.mark.parametrize("tree", ["chain", "best_first"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_v01_v11_v27_slice_of_grid_g(name: str, tree: str) -> None:
    """V01, V11, V27: K 4, five at a time."""
    jobs = jobs_for((1, 7, 31), (1, 2, 4, 5, 6)) + jobs_for((2, 64), (20,))
    results = grid_g(4, name, 5, tree, jobs)
    accepted = sum(result.stats.num_accepted for result in results)
    if tree == "chain":
        assert (name == "anti") == (accepted == 0)


@slow
@pytest.mark.parametrize("batch", [1, 2, 5, 8])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("tree", ["chain", "best_first"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_v01_v11_v27_grid_g(name: str, tree: str, k: int, batch: int) -> None:
    """V01, V11, V27: all of it; each job greedy and sampled."""
    jobs = jobs_for(LENGTHS, tuple(sorted({1, 2, k, k + 1, k + 2, 40})))
    jobs += [replace(job, temperature=1.0 - job.temperature) for job in jobs]
    grid_g(k, name, batch, tree, jobs)


class RowHashes(GumbelSampler):
    """A sampler that notes the hash of every logit row it chooses from, by (seed, position)."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], str] = {}

    def choose(self, row: np.ndarray, params: SamplingParams, state: Any, position: int) -> Choice:
        key, digest = (state.seed, position), hashlib.sha256(row.tobytes()).hexdigest()
        assert self.rows.setdefault(key, digest) == digest
        return super().choose(row, params, state, position)


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize(("count", "limit"), [(10, 6), pytest.param(1000, 2, marks=slow)])
def test_v02_verify_rows_equal_decode_rows(numerics: str, count: int, limit: int) -> None:
    """V02, V66: the whole logit row at every output position, hashed: alone and plain against
    chains, trees and a batch of ragged lengths; so no arg-max can flip."""
    target = rig(numerics)
    jobs = [Job(prompt(1 + 5 * n % 90, n), limit, seed=n, logprobs=None) for n in range(count)]
    known = RowHashes()
    for job in jobs:
        plain_with(target, job, sampler=known)
    assert len(known.rows) == count * limit
    answers = target.answers(jobs)
    half_right = chain(answers, 8, right_until(2), target.vocab_size)
    for setting in (
        {"script": half_right, "k": 8, "batch": 8},
        {"draft": target, "k": 3, "tree": "best_first", "nodes": 40, "batch": 4, "rows": 64},
    ):
        seen = RowHashes()
        target.exact(jobs, sampler=seen, **setting)
        different = [key for key in known.rows if seen.rows[key] != known.rows[key]]
        assert not different, f"{setting}: rows (request, position) {different[:5]} moved"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [1, 4])
def test_v06_mismatch_at_every_draft_index(k: int, temperature: float) -> None:
    """V06: drafts right up to j, for every j in 0..K: exactly j + 1 tokens per step, and after each
    step the cache holds all committed tokens but the last."""
    target = rig()
    job = Job(prompt(9), 16, temperature=temperature)
    for j in range(k + 1):
        answers = target.answers([job], extra=k)
        script = chain(answers, k, right_until(j), target.vocab_size)
        engine = target.engine(script=script, k=k, batch=1)
        sequence = engine.add(job.request("0"))
        while engine.has_work:
            before = sequence.num_output
            engine.step()
            # A draft past max_tokens is not verified, so the last steps are shorter.
            assert sequence.num_output - before == min(j + 1, job.max_tokens - before)
            if sequence.finish_reason is None:
                assert engine.parts.kv.length("0") == len(sequence.token_ids) - 1
            engine.parts.kv.check()
        equal(target.plain(job), Result.of(sequence), f"k={k} j={j}")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v10_prompt_lookup_without_any_eos(temperature: float) -> None:
    """V10: the thread's ids; one token; one token repeated; a match at the very end, which nothing
    follows."""
    prompts = [(21, 22, 23, 24, 25, 26, 22, 23), (5,), (9,) * 30, (1, 2, 3, 4, 1, 2, 3, 4)]
    jobs = [Job(ids, 15, temperature=temperature) for ids in prompts]
    for k in (1, 3, 8):
        results = rig().exact(jobs, method="ngram", k=k)
        assert [len(result.token_ids) for result in results] == [15] * 4
    alone = [rig().run([job], method="ngram", k=3, batch=1)[0] for job in jobs]
    rig().same(jobs, alone)


def test_draft_tokens_no_vocabulary_holds_change_nothing() -> None:
    """Scripts that propose ids beyond the vocabulary, or below zero, are cut by the drafter."""

    def strange(sequence: Any, budget: int) -> Any:
        yield -1, -1, 0.9
        yield -1, 10**6, 0.8
        yield -1, rig().vocab_size, 0.8
        yield -1, 3, 0.8

    script: Script = strange
    rig().exact([Job(prompt(5), 12)], script=script, k=4)


def test_requests_that_arrive_while_others_run() -> None:
    """Continuous batching: each step may bring a new neighbour."""
    target = rig()
    jobs = [Job(prompt(3 + 11 * n, n), 12, temperature=n % 2 * 0.8, seed=n) for n in range(8)]
    engine = target.engine("ngram", batch=3, rows=40)
    results = drive(engine, [(3 * place, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, results)
