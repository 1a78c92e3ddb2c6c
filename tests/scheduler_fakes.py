"""A pretend engine for scheduler tests: every plan is checked, carried out and committed.

The pretend target's token at a position depends on the request alone, so whatever is planned, the
output must be `reference(request)`. Which drafts are accepted is drawn from a seeded generator.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

from foreword.config import SchedulerConfig
from foreword.scheduler import Entry, Plan, Scheduler, num_read
from foreword.types import Request, SamplingParams, Sequence, TokenLogprobs
from kv_fakes import IntegerPool, Writer, make_store


def request_of(
    name: str,
    prompt: int | list[int],
    max_tokens: int,
    priority: int = 0,
    prompt_logprobs: int | None = None,
) -> Request:
    """`prompt`: ids, or how many; equal lengths give equal prompts."""
    ids = list(range(prompt)) if isinstance(prompt, int) else prompt
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, prompt_logprobs=prompt_logprobs)
    return Request(name, tuple(ids), params, 0, max_tokens=max_tokens, priority=priority)


def target_token(request: Request, position: int) -> int:
    return zlib.crc32(f"{request.id} {position}".encode()) % 1000


def reference(request: Request, length: int | None = None) -> list[int]:
    count = request.max_tokens if length is None else length
    return [target_token(request, position) for position in range(count)]


class Machine:
    """Scheduler, store and the loop between them."""

    def __init__(
        self,
        *,
        rows: int = 32,
        seqs: int = 8,
        slots: int = 200,
        block_size: int = 4,
        store: str = "paged",
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.store = make_store(store, IntegerPool(slots), block_size=block_size, **options)
        self.writer = Writer(self.store)
        config = SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=rows)
        self.scheduler = Scheduler(config, self.store.capacity, self.store.block_size)
        self.rng = random.Random(seed)
        self.finished: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}  # an end of text before max_tokens
        self.num_steps = 0
        self.num_computed = 0  # certain rows

    def add(self, request: Request) -> Sequence:
        sequence = Sequence(request, list(request.prompt_ids))
        self.scheduler.add(sequence)
        return sequence

    def abort(self, name: str) -> None:
        """Cut a request wherever it is; nothing if it is nowhere."""
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            if sequence.id == name:
                self.scheduler.finish(sequence)
        if name in self.writer.held:
            self.writer.free(name)
        self.store.check()

    def step(self, draft_budget: int = 0, max_per_sequence: int = 0) -> Plan:
        plan = self.scheduler.plan(self.store, draft_budget, max_per_sequence)
        self.num_steps += 1
        for sequence in plan.preempted:
            del self.writer.held[sequence.id], self.writer.salts[sequence.id]
        for sequence in plan.admitted:
            length = self.store.length(sequence.id)
            self.writer.held[sequence.id] = sequence.token_ids[:length]
            self.writer.salts[sequence.id] = sequence.request.salt
        self.check(plan, draft_budget, max_per_sequence)
        self.num_computed += sum(entry.count for entry in plan.entries)
        left = plan.draft_total
        for entry in plan.entries:
            left -= self.run(entry, self.rng.randint(0, min(entry.draft_limit, left)))
        self.writer.check()
        return plan

    def run_all(self, draft_budget: int = 0, max_per_sequence: int = 0, limit: int = 2000) -> int:
        """Steps until everything has finished."""
        first = self.num_steps
        while self.scheduler.has_work:
            self.step(draft_budget, max_per_sequence)
            assert self.num_steps - first < limit, "nobody gets anywhere"
        assert self.store.num_free_tokens == self.store.capacity
        return self.num_steps - first

    def run(self, entry: Entry, nodes: int) -> int:
        """One sequence's part of the pass; returns the draft nodes it verified."""
        sequence, request = entry.sequence, entry.sequence.request
        accepted = self.rng.randint(0, nodes)
        path = sorted(self.rng.sample(range(entry.count, entry.count + nodes), accepted))
        tokens = sequence.token_ids[entry.start : entry.start + entry.count]
        parents = list(range(-1, entry.count - 1))
        node = entry.count - 1
        for row in range(entry.count, entry.count + nodes):
            guess = (
                target_token(request, sequence.num_output + path.index(row)) if row in path else 0
            )
            tokens.append(guess if row in path else 1000 + row)
            parents.append(node)
            node = row if row in path else node
        self.writer.write(sequence.id, tokens, parents)
        self.writer.commit(sequence.id, tokens, [*range(entry.count), *path])
        for place in range(num_read(sequence, entry.start, entry.count)):
            token = request.prompt_ids[len(sequence.prompt_logprobs) + 1]
            sequence.prompt_logprobs.append(TokenLogprobs(token, -1.0 - place, ()))
        if entry.completes:
            self.emit(sequence, accepted + 1)
        return nodes

    def emit(self, sequence: Sequence, count: int) -> None:
        request = sequence.request
        assert sequence.first_unread == sequence.num_prompt - 1, "a row of the prompt was not read"
        length = self.lengths.get(sequence.id, request.max_tokens)
        for _ in range(count):
            if sequence.num_output < length:
                sequence.token_ids.append(target_token(request, sequence.num_output))
        if sequence.num_output == length:
            self.finished[sequence.id] = sequence.output_ids
            self.scheduler.finish(sequence)
            self.writer.free(sequence.id)

    def check(self, plan: Plan, draft_budget: int, max_per_sequence: int) -> None:
        """What every plan promises."""
        scheduler, order = self.scheduler, self.scheduler.order
        assert sum(entry.count for entry in plan.entries) + plan.draft_total <= scheduler.max_rows
        assert plan.draft_total <= draft_budget
        assert plan.draft_total <= sum(entry.draft_limit for entry in plan.entries)
        assert len(scheduler.running) <= scheduler.max_running
        read = [num_read(one.sequence, one.start, one.count) for one in plan.entries]
        assert sum(read) <= scheduler.read_rows
        for queue in (scheduler.running, scheduler.waiting):
            assert queue == sorted(queue, key=order)
        planned = [entry.sequence for entry in plan.entries]
        assert len({sequence.id for sequence in planned}) == len(planned)
        assert all(sequence in scheduler.running for sequence in planned)
        assert all(sequence in planned for sequence in plan.admitted)
        assert all(sequence in scheduler.waiting for sequence in plan.preempted)
        assert min((*scheduler.running, *scheduler.waiting), key=order) in planned
        if plan.admitted and scheduler.waiting:  # nobody jumps the queue
            assert max(map(order, plan.admitted)) < min(map(order, scheduler.waiting))
        for entry in plan.entries:
            self.check_entry(entry, max_per_sequence)
        self.store.check()

    def check_entry(self, entry: Entry, max_per_sequence: int) -> None:
        sequence, end = entry.sequence, entry.start + entry.count
        assert entry.start == self.store.length(sequence.id)
        assert entry.count >= 1
        if sequence.first_unread < sequence.num_prompt - 1:
            assert entry.start <= sequence.first_unread, "the prefix cache hides a row"
        assert end <= len(sequence.token_ids)
        assert entry.completes == (end == len(sequence.token_ids))
        assert min(sequence.token_ids) >= 0
        assert 0 <= entry.draft_limit <= max(0, min(max_per_sequence, sequence.remaining - 1))
        assert entry.completes or entry.draft_limit == 0
        assert len(self.store.slots(sequence.id)) == end + entry.draft_limit
