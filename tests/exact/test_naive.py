"""An independent reference: every token from a whole new pass over the row-by-row kernels.

No cache, no batch, no draft, no engine, no sampler: the choice is the contract's own formula, with
the noise from plain-integer Philox and the C library's logarithm. Compared with the loop on backend
"reference", everything on.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Job, Rig, count, declared, equal, plain_with, prompt, rig

from foreword.build import make_store
from foreword.model.batch import Batch, Segment
from foreword.sample.noise import philox

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "window": {"architecture": "mistral", "sliding_window": 8},
}


def noise(seed: int, position: int, token: int) -> float:
    """-log(-log(u)), u = (top 53 bits + 1/2) / 2**53."""
    word = philox((seed, 0), (token // 4, position, 0, 0))[token % 4]
    return -math.log(-math.log(((word >> 11) + 0.5) / 2**53))


def naive(target: Rig, job: Job) -> tuple[int, ...]:
    ids = list(job.prompt)
    for position in range(job.max_tokens):
        store = make_store(target.config, target.checkpoint, 128)
        slots = np.arange(1, len(ids) + 1, dtype=np.int64)
        row = target.model.forward(Batch.of([Segment.chain(ids, slots)]), store)[0].tolist()
        scores = row
        if job.temperature:
            scores = [
                logit + job.temperature * noise(job.seed, position, token)
                for token, logit in enumerate(row)
            ]
        ids.append(scores.index(max(scores)))
    return tuple(ids[len(job.prompt) :])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_the_loop_equals_a_naive_one_on_the_reference_kernels(numerics: str, name: str) -> None:
    target = rig(numerics, backend="reference", max_position=128, **MODELS[name])
    prompts = [prompt(1), prompt(5) + prompt(5), prompt(33)]
    jobs = [Job(ids, 5, n % 2, seed=n, logprobs=None) for n, ids in enumerate(prompts)]
    results = target.run(jobs, method="ngram", k=4, tree="best_first", block=4, rows=20)
    for job, result in zip(jobs, results, strict=True):
        assert result.token_ids == naive(target, job), job
    count(len(jobs), sum(job.max_tokens for job in jobs))


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_more_of_the_same_with_a_draft_model(numerics: str) -> None:
    target = rig(numerics, backend="reference", max_position=128)
    jobs = [Job(prompt(3 + 7 * n, n), 16, n % 3 / 2, seed=n, logprobs=None) for n in range(6)]
    results = target.run(jobs, draft=target, k=3, tree="best_first", nodes=24, batch=4, rows=32)
    for job, result in zip(jobs, results, strict=True):
        assert result.token_ids == naive(target, job), job
    count(len(jobs), sum(job.max_tokens for job in jobs))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_end_or_a_shorter_limit_only_cuts_plain_decoding(temperature: float) -> None:
    """What lets the harness run a reference once: each cut is compared with a run of its own."""
    target, job = rig(), Job(prompt(6), 20, temperature, seed=11)
    for limit in (1, 2, 9):
        short = replace(job, max_tokens=limit)
        equal(target.plain(short), plain_with(target, short))
    for step in (0, 2):
        ended = declared(target, job, step)
        result = plain_with(target, ended)
        equal(target.plain(ended), result)
        assert result.finish_reason == "stop"
