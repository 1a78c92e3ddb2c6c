"""Cases of part B: several rows in a batch, each accepting what it likes, none seeing another."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from harness import Job, Result, declared, drive, equal, prompt, rig

import apparatus
from foreword.draft.scripted import chain, right_until
from foreword.types import Sequence

slow = pytest.mark.slow
ONE_BRANCH = {"num_branches": 1, "confidence_threshold": 0.0}


@pytest.mark.parametrize("drafter", ["noise", "ngram"])
def test_v11_eight_rows_half_repetitive_in_any_order(drafter: str) -> None:
    """V11: rows that always accept beside rows that never do; in any order the same rows."""
    target = rig()
    loops = [Job((97, 98, 99) * (3 + n), 12, temperature=n % 2, seed=n) for n in range(4)]
    wild = [Job(prompt(5 + 9 * n, n), 12, temperature=n % 2, seed=n) for n in range(4)]
    jobs = [job for pair in zip(loops, wild, strict=True) for job in pair]
    setting = {"draft": rig(noise=apparatus.NOISE)} if drafter == "noise" else {"method": "ngram"}
    for turn in range(5 if drafter == "ngram" else 2):
        order = random.Random(turn).sample(range(8), 8)
        target.exact([jobs[place] for place in order], k=4, batch=8, **setting)


@pytest.mark.parametrize("store", ["paged", "dense"])
@pytest.mark.parametrize("steps", [8, pytest.param(30, marks=slow)])
def test_v12_ragged_acceptance_follows_the_script(store: str, steps: int) -> None:
    """V12: row 0 accepts all K, row 1 none, row 2 two and then one and two in turn, for 30
    steps."""
    target, k = rig(), 4
    jobs = [
        Job(prompt(5), steps * (k + 1)),
        Job(prompt(11), steps, temperature=1.0),
        Job(prompt(40), 2 + steps // 2 * 5, temperature=0.7),
    ]
    wanted = {"0": (k,), "1": (0,), "2": (2, 1)}

    def right(sequence: Sequence, index: int) -> bool:
        turns = wanted[sequence.id]
        return index < turns[sequence.stats.num_steps % len(turns)]

    script = chain(target.answers(jobs, extra=k), k, right, target.vocab_size)
    results = target.exact(jobs, script=script, k=k, batch=3, store=store)
    for place, result in enumerate(results):
        turns = wanted[str(place)]
        full = result.stats.num_steps - 1  # the last step may be cut by max_tokens
        accepted = [turns[step % len(turns)] for step in range(full)]
        assert full >= steps - 2
        assert sum(result.stats.histogram.values()) == full + 1
        lengths = sum(accepted) + full
        assert 1 <= len(result.token_ids) - lengths <= k + 1


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 6])
def test_v13_one_row_ends_early_and_its_seat_is_taken(step: int) -> None:
    """V13: one row meets its EOS at step j (K 4); the others, and the one that takes the seat in
    the same step, are as they are alone. Both finishing orders."""
    target, k = rig(), 4
    jobs = [Job(prompt(4 + 7 * n, n), 20, temperature=n % 2, seed=n) for n in range(5)]
    jobs[0] = declared(target, replace(jobs[0], temperature=1.0, seed=3), step - 1)
    expected = target.plain(jobs[0])
    assert expected.finish_reason == "stop"
    assert expected.token_ids[-1] in jobs[0].ends
    for order in (jobs, jobs[::-1]):
        script = chain(target.answers(order), k, right_until(k), target.vocab_size)
        target.exact(order, script=script, k=k, batch=4)


@pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=slow)])
def test_v14_greedy_and_sampled_requests_mixed(rounds: int) -> None:
    """V14: every subset of {greedy, seeded, unseeded, top-k}; the unseeded one equals its own rerun
    with the seed it was told."""
    from foreword.types import SamplingParams

    target = rig()
    common = {"max_tokens": 8, "ignore_eos": True, "logprobs": 2}
    kinds = [
        SamplingParams(temperature=0.0, **common),
        SamplingParams(temperature=1.0, seed=7, **common),
        SamplingParams(temperature=1.0, **common),
        SamplingParams(temperature=1.0, top_k=5, seed=9, **common),
    ]
    prompts = [list(prompt(5 + 3 * n, n)) for n in range(4)]
    llm = target.door(target.engine("ngram", k=4))
    subsets = [s for size in range(1, 5) for s in itertools.combinations(range(4), size)]
    for turn in range(rounds):
        for subset in subsets:
            order = random.Random(f"{turn}{subset}").sample(subset, len(subset))
            outputs = llm.generate([prompts[n] for n in order], [kinds[n] for n in order])
            for n, output in zip(order, outputs, strict=True):
                (out,) = output.outputs
                job = Job(
                    tuple(prompts[n]),
                    8,
                    temperature=kinds[n].temperature or 0.0,
                    top_k=kinds[n].top_k or 0,
                    seed=out.seed,
                )
                expected = target.plain(job)
                assert tuple(out.token_ids) == expected.token_ids, (subset, n)
                assert out.finish_reason == expected.finish_reason
                chosen = [
                    row[i].logprob for row, i in zip(out.logprobs, out.token_ids, strict=True)
                ]
                assert [value.hex() for value in chosen] == [e[1] for e in expected.logprobs]


@pytest.mark.parametrize("store", ["paged", "dense"])
def test_v15_a_pool_one_block_too_small(store: str) -> None:
    """V15: four requests, room for all but one block: the step is split, nobody notices."""
    target, k, block = rig(), 4, 4
    jobs = [Job(prompt(10 + 5 * n, n), 14, temperature=n % 2, seed=n) for n in range(4)]
    pages = [-(-(job.positions - 1) // block) for job in jobs]
    script = chain(target.answers(jobs, extra=k), k, right_until(2), target.vocab_size)
    tight = (sum(pages) - 1 + 1) * block  # one page is the null page
    target.exact(jobs, script=script, k=k, batch=4, store=store, block=block, slots=tight)
    engine = target.engine(script=script, k=k, batch=4, store=store, block=block, slots=tight // 2)
    target.same(jobs, drive(engine, [(0, place, job) for place, job in enumerate(jobs)]))
    assert engine.parts.scheduler.num_preemptions > 0


@pytest.mark.parametrize("drafter", ["noise", "ngram"])
def test_v16_acceptance_does_not_depend_on_concurrency(drafter: str) -> None:
    """V16: fixed K: every copy of a greedy prompt has the same counters, 1, 4 or 16 at once."""
    target, k = rig(), 3
    job = Job(prompt(6) + prompt(6), 16)
    setting = {"method": "ngram"}
    if drafter == "noise":
        setting = {"draft": rig(noise=apparatus.NOISE), "options": ONE_BRANCH}
    counters = set()
    for copies in (1, 4, 16):
        results = target.exact([job] * copies, k=k, batch=16, prefix=False, **setting)
        counters |= {
            (one.stats.num_steps, one.stats.num_drafted, one.stats.num_accepted) for one in results
        }
    assert len(counters) == 1, counters


def all_accepted(result: Result, k: int) -> bool:
    """Every draft of every step, none of them cut but by the end."""
    stats = result.stats
    steps = -(-len(result.token_ids) // (k + 1))
    return stats.num_accepted == stats.num_drafted > 0 and stats.num_steps == steps


@pytest.mark.parametrize(
    ("k", "tokens"),
    [(1, 10), (4, 19), (8, 27), *(pytest.param(k, 200, marks=slow) for k in range(1, 9))],
)
def test_v17_the_target_as_its_own_drafter_is_always_right(k: int, tokens: int) -> None:
    """V17: acceptance exactly 1.0, alone and eight at once, greedy and with the target's noise."""
    target = rig()
    jobs = [
        Job(prompt(5 + 4 * n, n), tokens, temperature=n % 2, seed=n, logprobs=None)
        for n in range(8)
    ]
    for batch, some in ((1, jobs[:2]), (8, jobs)):
        for result in target.exact(some, draft=target, options=ONE_BRANCH, k=k, batch=batch):
            assert all_accepted(result, k), result.stats


def test_permuted_rows_of_one_step_keep_their_bits() -> None:
    """The same jobs in every order of arrival, one step apart."""
    target = rig("bfloat16")
    jobs = [Job(prompt(3 + 17 * n, n), 8, temperature=n % 2, seed=n) for n in range(3)]
    for order in itertools.permutations(range(3)):
        engine = target.engine("ngram", k=4, batch=3, rows=32)
        results = drive(engine, [(step, place, jobs[place]) for step, place in enumerate(order)])
        for job, result in zip(jobs, results, strict=True):
            equal(target.plain(job), result, order)
