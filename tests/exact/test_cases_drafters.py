"""Cases that concern every drafter of the folder, or all that read with a model of their own."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from harness import Job, Result, Rig, drive, prompt, rig

import apparatus
from foreword.build import member, names
from foreword.model.batch import Batch, Segment

slow = pytest.mark.slow
HONEST = [name for name in names("draft") if name not in ("none", "scripted")]
READERS = [name for name in HONEST if member("draft", name).needs & {"own_kv", "layers"}]
ONE_PATH: dict[str, Any] = {"num_branches": 1, "confidence_threshold": 0.0}
FALSE_ALARM = 1e-4


def deep() -> Rig:
    """Four layers, so that `skip` has four units it may leave out."""
    return rig(num_layers=4)


def setting_of(name: str, draft: Rig, **options: Any) -> dict[str, Any]:
    """How the drafter is asked for; those of READERS draft one path of full depth."""
    if name in READERS:
        options = {**ONE_PATH, **options}
    own = "own_kv" in member("draft", name).needs
    return {"method": name, "options": options, **({"draft": draft} if own else {})}


def test_the_readers_are_listed() -> None:
    assert {"model", "cascade", "skip"} <= set(READERS)


@pytest.mark.parametrize("name", HONEST)
def test_v16_acceptance_does_not_depend_on_concurrency(name: str) -> None:
    """V16, with learning frozen: fixed K: every copy of a greedy prompt has the same counters, 1, 4
    or 16 at once."""
    target = deep()
    job = Job(prompt(6) + prompt(6), 16)
    setting = setting_of(name, rig(num_layers=4, noise=apparatus.NOISE))
    counters = set()
    for copies in (1, 4, 16):
        engine = target.engine(k=3, batch=16, prefix=False, learning=False, **setting)
        results = drive(engine, [(0, place, job) for place in range(copies)])
        target.same([job] * copies, results, name)
        counters |= {
            (one.stats.num_steps, one.stats.num_drafted, one.stats.num_accepted) for one in results
        }
    assert len(counters) == 1, counters


def all_accepted(result: Result, k: int) -> bool:
    """Every draft of every step, none of them cut but by the end."""
    stats = result.stats
    steps = -(-len(result.token_ids) // (k + 1))
    return stats.num_accepted == stats.num_drafted > 0 and stats.num_steps == steps


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    ("k", "tokens"),
    [(1, 10), (4, 19), (8, 27), *(pytest.param(k, 200, marks=slow) for k in range(1, 9))],
)
def test_v17_the_target_as_its_own_drafter_is_always_right(name: str, k: int, tokens: int) -> None:
    """V17: acceptance exactly 1.0, alone and eight at once, greedy and at temperature 1 with the
    target's noise; `skip` leaves nothing out, and may read a whole prompt."""
    target = deep()
    options = {"skip_share": 0.0, "window": 64} if name == "skip" else {}
    jobs = [
        Job(prompt(5 + 4 * n, n), tokens, temperature=n % 2, seed=n, logprobs=None)
        for n in range(8)
    ]
    setting = setting_of(name, target, **options)
    for batch, some in ((1, jobs[:2]), (8, jobs)):
        for result in target.exact(some, k=k, batch=batch, **setting):
            assert all_accepted(result, k), result.stats


@cache
def first_row() -> np.ndarray:
    """float64 [vocab]: the target's probabilities after the prompt of V04."""
    target, ids = deep(), prompt(5)
    kv = target.engine().parts.kv
    kv.begin("row", ids)
    assert kv.reserve("row", len(ids))
    row = target.model.forward(Batch.of([Segment.chain(ids, kv.slots("row"))]), kv)[0]
    kv.free("row")
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def cells() -> np.ndarray:
    """int64 [vocab]: the ids in three cells of about a third of the probability each."""
    order = np.argsort(-first_row(), kind="stable")
    before = np.concatenate(([0.0], np.cumsum(first_row()[order])[:-1]))
    cell = np.empty(len(order), dtype=np.int64)
    cell[order] = np.minimum((before * 3).astype(np.int64), 2)
    return cell


@pytest.mark.parametrize("count", [128, pytest.param(8000, marks=slow)])
@pytest.mark.parametrize("name", READERS)
def test_v04_first_tokens_with_the_targets_noise(name: str, count: int) -> None:
    """V04: at temperature 1 drafts share the target's noise; the first tokens of `count` seeds are
    plain sampling's, distributed as the target's softmax, and drafts were accepted among them."""
    target = deep()
    jobs = [Job(prompt(5), 2, temperature=1.0, seed=seed, logprobs=None) for seed in range(count)]
    options = {"window": 64} if name == "skip" else {}
    setting = setting_of(name, rig(num_layers=4, seed=1), **options)
    results = target.run(jobs, k=1, batch=16, **setting)
    assert sum(one.stats.num_drafted for one in results) >= count
    target.same(jobs[:16], results[:16], name)
    found = np.bincount([cells()[one.token_ids[0]] for one in results], minlength=3)
    expected = count * np.bincount(cells(), weights=first_row(), minlength=3)
    statistic = float(((found - expected) ** 2 / expected).sum())
    assert math.exp(-statistic / 2) > FALSE_ALARM
