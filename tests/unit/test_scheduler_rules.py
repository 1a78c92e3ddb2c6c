"""The rules of scheduler.py one by one: order of spending, shares, pages, priorities, refusals."""

from __future__ import annotations

import subprocess
import sys

import pytest

from foreword.errors import RequestError
from foreword.scheduler import Plan, _Step
from scheduler_fakes import Machine, reference, request_of


def counts(plan: Plan) -> dict[str, int]:
    return {entry.sequence.id: entry.count for entry in plan.entries}


def limits(plan: Plan) -> dict[str, int]:
    return {entry.sequence.id: entry.draft_limit for entry in plan.entries}


def decoding(machine: Machine, *names: str, max_tokens: int = 100, prompt: int = 3) -> None:
    """Bring requests to the point where each has emitted and one row of each is pending."""
    added = [machine.add(request_of(name, [ord(name)] * prompt, max_tokens)) for name in names]
    while any(sequence.num_output == 0 for sequence in added):
        machine.step()
    assert all(name in machine.writer.held for name in names)


def test_a_decode_gets_its_row_while_a_long_prompt_arrives() -> None:
    machine = Machine(rows=16, slots=400)
    decoding(machine, "a", "b")
    machine.add(request_of("long", 100, 4))
    for _ in range(6):
        found = counts(machine.step())
        assert found["a"] == found["b"] == 1
        assert found["long"] == 12  # 14 rows are left, the chunk ends on a page end


def test_drafts_take_at_most_half_of_what_decodes_leave_while_a_prompt_waits() -> None:
    machine = Machine(rows=17, slots=400)
    decoding(machine, "a")
    machine.add(request_of("long", 100, 4))
    plan = machine.step(draft_budget=100, max_per_sequence=100)
    assert counts(plan) == {"a": 1, "long": 8}
    assert plan.draft_total == 8


def test_a_prompt_gets_all_that_drafts_do_not_want() -> None:
    machine = Machine(rows=32, slots=400)
    decoding(machine, "a")
    machine.add(request_of("long", 100, 4))
    plan = machine.step(draft_budget=100, max_per_sequence=3)
    assert counts(plan) == {"a": 1, "long": 28}
    assert plan.draft_total == 3


def test_drafts_get_everything_when_no_prompt_waits() -> None:
    machine = Machine(rows=16, slots=400)
    decoding(machine, "a", "b")
    plan = machine.step(draft_budget=100, max_per_sequence=100)
    assert plan.draft_total == 14
    assert limits(plan) == {"a": 14, "b": 14}  # the tree builder divides the total


def test_a_prompt_that_completes_may_draft_in_the_same_pass() -> None:
    machine = Machine(rows=16)
    machine.add(request_of("a", 5, 10))
    plan = machine.step(draft_budget=8, max_per_sequence=4)
    assert plan.entries[0].completes
    assert (counts(plan), limits(plan)) == ({"a": 5}, {"a": 4})


def test_no_draft_goes_past_max_tokens() -> None:
    machine = Machine(rows=16)
    for left in (3, 2, 1):
        machine.add(request_of(f"r{left}", [left] * 2, left))
    plan = machine.step(draft_budget=12, max_per_sequence=8)
    assert limits(plan) == {"r3": 2, "r2": 1, "r1": 0}


def test_chunks_end_on_page_ends_and_the_next_prompt_uses_the_rest() -> None:
    machine = Machine(rows=11, slots=400, block_size=8)
    machine.add(request_of("a", [1] * 30, 4))
    machine.add(request_of("b", [2] * 30, 4))
    plans = [machine.step() for _ in range(4)]
    chunks = [[(entry.start, entry.count) for entry in plan.entries] for plan in plans]
    assert chunks == [
        [(0, 8), (0, 3)],
        [(8, 8), (3, 3)],  # three rows do not reach the page end
        [(16, 8), (6, 2)],
        [(24, 6), (8, 5)],
    ]


def test_started_prompts_come_before_new_ones() -> None:
    machine = Machine(rows=8, slots=400)
    machine.add(request_of("a", [1] * 20, 4))
    machine.step()
    machine.add(request_of("b", [2] * 4, 4))
    assert counts(machine.step()) == {"a": 8}


def test_admission_stops_at_the_first_that_does_not_fit() -> None:
    machine = Machine(rows=64, slots=44)  # 40 tokens
    decoding(machine, "a", max_tokens=20, prompt=12)
    machine.add(request_of("big", [2] * 30, 4))
    machine.add(request_of("small", [3] * 2, 4))
    assert counts(machine.step()) == {"a": 1}
    machine.run_all()
    assert list(machine.finished) == ["a", "big", "small"]


def test_max_num_seqs_bounds_who_runs() -> None:
    machine = Machine(seqs=2)
    for name in "abc":
        machine.add(request_of(name, [ord(name)], 3))
    assert list(counts(machine.step())) == ["a", "b"]


def test_admission_goes_by_priority_then_arrival() -> None:
    machine = Machine(seqs=1)
    for name, priority in (("a", 1), ("b", 0), ("c", 1), ("d", -1)):
        machine.add(request_of(name, [ord(name)], 2, priority))
    machine.run_all()
    assert list(machine.finished) == ["d", "b", "a", "c"]


def test_a_more_urgent_arrival_takes_the_seat_of_the_least_urgent() -> None:
    machine = Machine(seqs=2)
    decoding(machine, "a", "b", max_tokens=9)
    machine.add(request_of("same", [9], 2))
    assert list(counts(machine.step())) == ["a", "b"]
    machine.add(request_of("now", [8], 2, priority=-1))
    plan = machine.step(draft_budget=8, max_per_sequence=4)
    assert [sequence.id for sequence in plan.preempted] == ["b"]
    assert list(counts(plan)) == ["a", "now"]
    machine.run_all(draft_budget=8, max_per_sequence=4)
    assert list(machine.finished)[:1] == ["now"]
    assert machine.finished["b"] == reference(request_of("b", 3, 9))
    assert list(machine.finished).index("b") < list(machine.finished).index("same")


def test_a_more_urgent_arrival_takes_room_but_only_if_that_helps() -> None:
    machine = Machine(rows=64, slots=44)  # 40 tokens
    decoding(machine, "a", max_tokens=10, prompt=10)
    machine.add(request_of("b", [2] * 10, 10, priority=1))
    machine.step()
    machine.add(request_of("huge", [3] * 30, 5, priority=0))
    assert machine.step().preempted == ()  # a stays, and beside it huge has no room
    machine.add(request_of("now", [4] * 16, 5, priority=-1))
    assert [sequence.id for sequence in machine.step().preempted] == ["b"]
    machine.run_all()


def test_nobody_loses_a_seat_to_an_arrival_that_has_no_room_there() -> None:
    """Two seats: big takes most of the room, so urgent does not fit even without small."""
    machine = Machine(rows=64, seqs=2, slots=104, block_size=4)  # 100 tokens
    big, small = request_of("big", [1] * 60, 20), request_of("small", [2] * 10, 20, priority=5)
    urgent = request_of("urgent", [3] * 50, 5, priority=1)
    for request in (big, small):
        machine.add(request)
        machine.step()
    machine.add(urgent)
    for _ in range(5):
        plan = machine.step()
        assert plan.preempted == ()
        assert counts(plan).keys() == {"big", "small"}
    machine.run_all()
    assert machine.finished == {request.id: reference(request) for request in (big, small, urgent)}


def test_a_seat_and_more_room_than_its_holder_has_come_from_several() -> None:
    machine = Machine(rows=64, seqs=3, slots=104, block_size=4)  # 100 tokens
    decoding(machine, "a", max_tokens=10, prompt=10)
    for name in "bc":
        machine.add(request_of(name, [ord(name)] * 30, 5, priority=1))
        machine.step()
    machine.add(request_of("now", [4] * 60, 5))
    plan = machine.step()
    assert [sequence.id for sequence in plan.preempted] == ["c", "b"]
    assert "now" in counts(plan)
    machine.run_all()


@pytest.mark.parametrize("place", ["_find_place", "_prefill"])
def test_an_interrupted_admission_leaves_no_room_held(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    waiting = machine.add(request_of("a", 30, 5))

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Step, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            machine.scheduler.plan(machine.store)
    machine.store.check()
    assert machine.store.num_free_tokens == machine.store.capacity
    assert (machine.scheduler.waiting, machine.scheduler.running) == ([waiting], [])
    machine.run_all()
    assert list(machine.finished) == ["a"]


def test_a_full_row_budget_does_not_keep_a_more_urgent_arrival_out() -> None:
    machine = Machine(rows=2, seqs=8)
    decoding(machine, "a", "b", max_tokens=20)
    machine.add(request_of("now", [7], 2, priority=-1))
    assert "now" in counts(machine.step())


def test_a_running_sequence_is_never_starved_of_rows() -> None:
    """More seats than rows: who runs is bounded by the rows."""
    machine = Machine(rows=3, seqs=50)
    for number in range(6):
        machine.add(request_of(f"r{number}", [number] * 7, 5))
    while machine.scheduler.has_work:
        plan = machine.step(draft_budget=10, max_per_sequence=5)
        decodes = [entry for entry in plan.entries if entry.count == 1]
        assert len(machine.scheduler.running) <= 3
        assert decodes or any(entry.count > 1 for entry in plan.entries)
    assert len(machine.finished) == 6


def test_a_prompt_is_not_starved_by_decodes_and_drafts() -> None:
    machine = Machine(rows=8, seqs=8, slots=800)
    decoding(machine, *"abcdef", max_tokens=100)
    machine.add(request_of("p", [1] * 30, 2))
    steps = 0
    while "p" not in machine.finished:
        machine.step(draft_budget=50, max_per_sequence=50)
        steps += 1
        assert steps <= 32  # at least one row of each pass is the prompt's


def test_without_room_drafts_go_first_then_the_last_in_order() -> None:
    machine = Machine(rows=32, slots=24)  # 5 pages
    decoding(machine, "a", "b", max_tokens=10, prompt=5)
    seen = []
    while machine.scheduler.has_work:
        plan = machine.step(draft_budget=8, max_per_sequence=4)
        seen += [sequence.id for sequence in plan.preempted]
        if plan.preempted:
            assert list(counts(plan)) == ["a"]
    assert set(seen) == {"b"}
    assert list(machine.finished) == ["a", "b"]
    assert machine.finished["b"] == reference(request_of("b", 5, 10))


def test_drafts_that_find_no_page_still_use_the_rest_of_the_last_one() -> None:
    machine = Machine(rows=32, slots=20)  # 4 pages, of which a holds two and b one
    machine.add(request_of("a", [1] * 5, 12))
    machine.add(request_of("b", [2], 12))
    machine.step()
    assert limits(machine.step(draft_budget=16, max_per_sequence=8)) == {"a": 2, "b": 2}


def test_the_engine_learns_whom_to_begin_and_end() -> None:
    machine = Machine(seqs=1)
    machine.add(request_of("a", [1] * 3, 9))
    assert [sequence.id for sequence in machine.step().admitted] == ["a"]
    machine.add(request_of("b", [2] * 3, 2, priority=-1))
    plan = machine.step()
    assert [sequence.id for sequence in plan.admitted] == ["b"]
    assert [sequence.id for sequence in plan.preempted] == ["a"]
    while "b" not in machine.finished:
        machine.step()
    again = machine.step()
    assert [sequence.id for sequence in again.admitted] == ["a"]
    assert len(again.entries[0].sequence.output_ids) >= 1  # what it had emitted is kept


def test_a_request_that_can_never_fit_is_refused_with_both_numbers() -> None:
    machine = Machine(slots=44)
    machine.add(request_of("fits", 31, 10))
    with pytest.raises(RequestError, match="need 41 KV positions, the cache holds 40") as caught:
        machine.add(request_of("big", 32, 10))
    assert caught.value.parameter == "max_tokens"
    machine.run_all(draft_budget=20, max_per_sequence=20)


def test_an_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    machine = Machine()
    machine.add(request_of("a", 3, 2))
    with pytest.raises(RequestError, match="'a' is in use"):
        machine.add(request_of("a", 3, 2))
    machine.run_all()
    machine.add(request_of("a", 3, 2))


def test_abort_reaches_waiting_running_and_preempted_requests() -> None:
    machine = Machine(seqs=1)
    machine.abort("nobody")
    for name in "abc":
        machine.add(request_of(name, [ord(name)] * 3, 5))
    machine.step()
    machine.abort("b")
    machine.abort("a")
    machine.run_all()
    assert list(machine.finished) == ["c"]


def test_an_idle_scheduler_plans_nothing() -> None:
    machine = Machine()
    plan = machine.scheduler.plan(machine.store, 8, 8)
    assert (plan.entries, plan.draft_total, plan.admitted, plan.preempted) == ((), 0, (), ())


def test_room_that_leaked_away_is_an_assertion_not_a_hang() -> None:
    machine = Machine(slots=24)
    machine.store.begin("leak", [1])
    machine.store.reserve("leak", 20)
    machine.add(request_of("a", 3, 2))
    with pytest.raises(AssertionError, match="no sequence can advance"):
        machine.scheduler.plan(machine.store)


def test_the_scheduler_and_the_stores_run_without_torch() -> None:
    script = (
        "import sys; import foreword.scheduler, foreword.kv.paged, foreword.kv.dense; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
