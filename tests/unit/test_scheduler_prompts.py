"""Prompts that share pages, and prompts that are scored: who waits for whom, and how much is
read."""

from __future__ import annotations

import random

import pytest

from foreword.scheduler import Plan, common_prefix
from scheduler_fakes import Machine, reference, request_of

PROMPT = list(range(40))


def chunks(plan: Plan) -> dict[str, tuple[int, int]]:
    return {entry.sequence.id: (entry.start, entry.count) for entry in plan.entries}


def test_samples_of_one_prompt_wait_for_the_first_to_commit_its_pages() -> None:
    machine = Machine(rows=32, slots=400)
    requests = [request_of(name, PROMPT, 4) for name in "abc"]
    for request in requests:
        machine.add(request)
    assert chunks(machine.step()) == {"a": (0, 32)}
    assert chunks(machine.step()) == {"a": (32, 8)}
    assert chunks(machine.step()) == {"a": (40, 1), "b": (36, 4), "c": (36, 4)}
    machine.run_all()
    assert machine.finished == {request.id: reference(request) for request in requests}
    assert machine.num_computed == 40 + 2 * 4 + 3 * 3


def test_an_equal_beginning_is_enough_and_nobody_overtakes() -> None:
    machine = Machine(rows=16, slots=400)
    machine.add(request_of("a", PROMPT, 4))
    machine.add(request_of("b", [*PROMPT[:10], *range(100, 120)], 4))
    machine.add(request_of("c", [7] * 3, 4))
    assert chunks(machine.step()) == {"a": (0, 16)}  # b's first 8 are committed now
    assert chunks(machine.step()) == {"a": (16, 16)}
    assert chunks(machine.step()) == {"a": (32, 8), "b": (8, 8)}
    machine.run_all()


@pytest.mark.parametrize(
    ("store", "options"), [("dense", {}), ("paged", {"enable_prefix_caching": False})]
)
def test_without_a_prefix_cache_each_reads_its_own(store: str, options: dict[str, bool]) -> None:
    machine = Machine(rows=200, slots=400, store=store, **options)
    for name in "abc":
        machine.add(request_of(name, PROMPT, 4))
    assert chunks(machine.step()) == dict.fromkeys("abc", (0, 40))
    machine.run_all()


def test_what_is_cached_already_is_not_waited_for() -> None:
    machine = Machine(rows=32, slots=400)
    machine.add(request_of("old", PROMPT, 1))
    machine.run_all()
    machine.add(request_of("scored", PROMPT, 4, prompt_logprobs=0))  # reads every row again
    machine.add(request_of("b", PROMPT, 4))
    plan = machine.step()
    assert chunks(plan)["scored"] == (0, 32)
    machine.scheduler.read_rows = 8
    machine.add(request_of("late", PROMPT, 4))
    assert chunks(machine.step())["late"] == (36, 4)
    machine.run_all()


def test_other_salts_and_the_less_urgent_are_not_waited_for() -> None:
    machine = Machine(rows=32, slots=400)
    machine.add(request_of("slow", PROMPT, 4, priority=1))
    machine.step()
    machine.add(request_of("now", PROMPT, 4, priority=0))
    assert chunks(machine.step())["now"] == (32, 8)  # what slow has committed, and no more
    machine.run_all()


def test_whoever_is_waited_for_may_leave() -> None:
    for leave in ("abort", "preempt"):
        machine = Machine(rows=8, seqs=2 if leave == "abort" else 1, slots=400)
        machine.add(request_of("a", PROMPT, 4))
        machine.add(request_of("b", PROMPT, 4))
        machine.step()
        assert [one.id for one in machine.scheduler.running] == ["a"]
        if leave == "abort":
            machine.abort("a")
        else:
            machine.add(request_of("now", [9] * 20, 3, priority=-1))
            assert [one.id for one in machine.step().preempted] == ["a"]
        machine.run_all()
        assert machine.finished["b"] == reference(request_of("b", PROMPT, 4))


def test_a_step_scores_no_more_rows_than_it_may() -> None:
    machine = Machine(rows=100, slots=400)
    machine.scheduler.read_rows = 10
    machine.add(request_of("a", PROMPT, 3, prompt_logprobs=2))
    machine.add(request_of("b", [*range(50, 62)], 3, prompt_logprobs=2))
    found = [chunks(machine.step()) for _ in range(6)]
    assert found[0] == {"a": (0, 8), "b": (0, 2)}  # chunks like to end on a page end
    assert found[1] == {"a": (8, 8), "b": (2, 2)}
    machine.run_all()
    assert sorted(machine.finished) == ["a", "b"]


def test_a_scored_prompt_takes_cached_pages_up_to_what_it_has_scored() -> None:
    """Preempted in the middle: it comes back to its own pages, and reads on."""
    machine = Machine(rows=16, seqs=1, slots=400)
    machine.add(request_of("a", PROMPT, 3, prompt_logprobs=0))
    machine.step()
    machine.add(request_of("now", [9] * 3, 2, priority=-1))
    machine.step()
    while "now" not in machine.finished:
        machine.step()
    assert chunks(machine.step()) == {"a": (16, 16)}
    machine.run_all()


@pytest.mark.parametrize("block", range(4))
def test_random_groups_read_their_prompts_once(block: int) -> None:
    """Groups of samples over prompts with common beginnings, in a roomy store: every full page is
    computed once, whatever the order; nobody starves."""
    for seed in range(block * 25, block * 25 + 25):
        rng = random.Random(seed)
        machine = Machine(rows=rng.choice((5, 16, 64)), seqs=16, slots=4000, seed=seed)
        prompts = [
            PROMPT[: rng.randrange(0, 30)] + [200 + n] * rng.randrange(1, 9) for n in range(4)
        ]
        requests = [request_of(f"{n}", rng.choice(prompts), 3) for n in range(12)]
        for request in requests:
            machine.add(request)
        machine.run_all(rng.choice((0, 8)), 4)
        assert machine.finished == {request.id: reference(request) for request in requests}
        pages = {
            tuple(request.prompt_ids[: 4 * (page + 1)])
            for request in requests
            for page in range((len(request.prompt_ids) - 1) // 4)
        }
        tails = [(len(request.prompt_ids) - 1) % 4 + 1 for request in requests]
        decoded = sum(len(reference(request)) - 1 for request in requests)
        assert machine.num_computed <= 4 * len(pages) + sum(tails) + decoded, f"seed {seed}"


@pytest.mark.parametrize("length", range(9))
def test_common_prefix_is_the_naive_one(length: int) -> None:
    for at in range(length + 1):
        other = [*range(at), *([99] * (length - at + 2))]
        assert common_prefix(list(range(length)), other) == at
        assert common_prefix(other, list(range(length))) == at
