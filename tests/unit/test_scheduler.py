"""Random schedules: budgets kept, nobody starved, everything finishes, the accounting always right.

`Machine.step` checks every plan and the store after it. Each test prints the seed it failed with.
"""

from __future__ import annotations

import random

import pytest

from kv_fakes import STORES
from scheduler_fakes import Machine, reference, request_of


def random_machine(rng: random.Random, seed: int) -> Machine:
    return Machine(
        rows=rng.choice((1, 2, 5, 16, 64)),
        seqs=rng.choice((1, 2, 4, 8)),
        slots=rng.choice((32, 48, 100)),
        block_size=rng.choice((1, 4, 8)),
        store=rng.choice(STORES),
        seed=seed,
        enable_prefix_caching=rng.random() < 0.7,
    )


def random_schedule(seed: int) -> Machine:
    """Arrivals, priorities, early ends, aborts and draft budgets, all drawn; until all is done."""
    rng = random.Random(seed)
    machine = random_machine(rng, seed)
    machine.scheduler.read_rows = rng.choice((1, 4, 64))
    requests = []
    for number in range(rng.randrange(1, 7)):
        prompt = rng.choice((1, 2, 3, 5, 8, 13, 15))
        ids = prompt if rng.random() < 0.6 else [100 + number] * prompt
        max_tokens = rng.choice((1, 2, 5, 9))
        priority, scored = rng.choice((0, 0, 0, 1, -1)), rng.choice((None, None, 2))
        requests.append(request_of(f"r{number}", ids, max_tokens, priority, scored))
        if rng.random() < 0.3:
            machine.lengths[f"r{number}"] = rng.randint(1, max_tokens)
    arriving, aborted = list(requests), set()
    while arriving or machine.scheduler.has_work:
        while arriving and (rng.random() < 0.4 or not machine.scheduler.has_work):
            machine.add(arriving.pop())
        machine.step(rng.choice((0, 3, 12, 100)), rng.choice((0, 1, 4, 40)))
        assert machine.num_steps < 1000, "nobody gets anywhere"
        if rng.random() < 0.02:
            name = rng.choice(requests).id
            aborted.add(name)
            machine.abort(name)
            arriving = [request for request in arriving if request.id != name]
    assert machine.store.num_free_tokens == machine.store.capacity
    for request in requests:
        if request.id in machine.finished:
            length = machine.lengths.get(request.id, request.max_tokens)
            assert machine.finished[request.id] == reference(request, length)
        else:
            assert request.id in aborted
    return machine


@pytest.mark.parametrize("block", range(8))
def test_random_schedules_keep_every_promise(block: int) -> None:
    preemptions = 0
    for seed in range(block * 150, block * 150 + 150):
        try:
            preemptions += random_schedule(seed).scheduler.num_preemptions
        except BaseException:
            print(f"seed {seed}")
            raise
    assert preemptions > 10, "the pools were too large for this test to mean anything"


def test_a_schedule_is_a_function_of_its_arrivals() -> None:
    """No clock, no chance: the same calls give the same plans."""
    for seed in range(20):
        assert random_schedule(seed).num_steps == random_schedule(seed).num_steps


@pytest.mark.parametrize("block", range(4))
def test_v59_preempted_requests_resume_as_if_never_interrupted(block: int) -> None:
    """V59: room for 2 of 4 requests, K=4, 200 arrival orders; no stale draft, no lost token."""
    preemptions = 0
    for seed in range(block * 50, block * 50 + 50):
        rng = random.Random(seed)
        machine = Machine(rows=32, seqs=4, slots=4 + 28, block_size=4, seed=seed)
        requests = [request_of(f"r{i}", [i] * 5, 10, rng.choice((0, 0, 1))) for i in range(4)]
        rng.shuffle(requests)
        arriving = list(requests)
        while arriving or machine.scheduler.has_work:
            if arriving and rng.random() < 0.5:
                machine.add(arriving.pop())
            if machine.scheduler.has_work:
                plan = machine.step(draft_budget=16, max_per_sequence=4)
                planned = {entry.sequence.id for entry in plan.entries}
                assert not planned & {sequence.id for sequence in plan.preempted}, f"seed {seed}"
        assert machine.finished == {request.id: reference(request) for request in requests}
        preemptions += machine.scheduler.num_preemptions
    assert preemptions > 10


def test_v15_a_pool_one_page_short_of_all_needs_gives_the_same_tokens() -> None:
    """V15: 4 requests in parallel, K=4, KV room = sum of their needs less one page."""
    requests = [request_of(f"r{i}", [i] * (6 + i), 11) for i in range(4)]
    needs = sum(-(-(len(request.prompt_ids) + 10) // 4) * 4 for request in requests)
    for seed in range(30):
        machine = Machine(rows=64, slots=4 + needs - 4, block_size=4, seed=seed)
        for request in requests:
            machine.add(request)
        machine.run_all(draft_budget=16, max_per_sequence=4)
        assert machine.finished == {request.id: reference(request) for request in requests}


@pytest.mark.parametrize("total", [1, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("cached", [0, 1, 15, 16, 17, 31, 32, 33])
def test_v55_every_chunk_of_a_cached_prompt_has_a_token(cached: int, total: int) -> None:
    """V55: chunks of 16 over every pair of cached and total around a chunk; no empty last chunk."""
    machine = Machine(rows=16, slots=100, block_size=4)
    if cached:
        machine.add(request_of("first", cached, 1))
        machine.run_all()
    request = request_of("second", total, 3)
    machine.add(request)
    plan = machine.step()
    assert plan.entries[0].start == min(cached, total - 1) // 4 * 4
    machine.run_all()
    assert machine.finished["second"] == reference(request)
