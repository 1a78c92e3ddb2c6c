"""Who runs in this step and with how many tokens. Integers only: no torch, no clock, no chance.

The unit of work is a row: one token in the pass. A step has at most `max_num_batched_tokens` rows
and spends them in this order (stall-free chunks, Sarathi-Serve, arXiv 2403.02310):

    1. decodes             one row each, never paused by somebody's prompt
    2. started prefills    in order, in chunks that end on a page end where they can
       and admissions      in order with them; the first that does not fit is the last tried
    3. drafts              for every sequence whose chunk ends at its last known token

"In order" is always (priority, arrival), the lower number first: of equal priority, what has
started comes before what is new. While prompts wait, drafts may claim half of what the decodes
leave, and get more only if the prompts cannot use it.

A new prompt that begins with pages which somebody ahead of it is just reading (samples of one
prompt, a common system message) waits for them and keeps its turn: it will find them in the prefix
cache, so they are read once. It waits only for a running sequence that comes before it, and holds
nothing, so nobody can wait for each other. Without a prefix cache each reads its own.

A prompt whose logprobs are wanted takes no cached pages beyond the rows it has scored, and a step
reads at most READ_ROWS such rows: each needs the LM head and a row of the vocabulary.

When the KV store has no room, drafts get none (they come last); then the last running sequence in
order gives its room back and waits again at its old place, keeping what it has emitted. A sequence
that is itself the last pauses for the step and keeps its room. So the first always advances.

The scheduler calls `begin` and `reserve` of the store, and `free` for those it preempts or cannot
admit after all. To commit, and to free what `finish` lets go, is the engine's part. It does not
know what a token means, what a draft is worth or how long a step takes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from foreword.config import SchedulerConfig
from foreword.errors import RequestError
from foreword.protocols import KVStore
from foreword.types import Request, Sequence

READ_ROWS = 64  # prompt rows scored in one pass at most: 64 x 150,000 float32 logits are 38 MB


@dataclass(slots=True)
class Entry:
    """One sequence's part of a pass: rows of `token_ids[start : start + count]`, then its drafts.

    The store holds a reservation of `count + draft_limit` rows for it.
    """

    sequence: Sequence
    start: int  # committed KV length
    count: int  # certain tokens in this pass, at least one
    completes: bool  # the chunk reaches the last known token: its last row is the root of a tree
    draft_limit: int = 0  # draft nodes it may verify, root not counted; 0 unless `completes`


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. The trees together may hold `draft_total` nodes (roots not counted)."""

    entries: tuple[Entry, ...]
    draft_total: int
    admitted: tuple[Sequence, ...]  # now in the store; a prompt of several chunks counts once
    preempted: tuple[Sequence, ...]  # no longer in the store, waiting again: drafters `end` them


class Scheduler:
    """Continuous batching over one KV store.

    capacity: `KVStore.capacity`, positions one sequence may hold. block_size: tokens of a page.
    """

    def __init__(self, config: SchedulerConfig, capacity: int, block_size: int = 1) -> None:
        self.max_rows = config.max_num_batched_tokens
        # With one row for each running sequence at least, nobody who runs can be starved of rows.
        self.max_running = min(config.max_num_seqs, config.max_num_batched_tokens)
        self.read_rows = READ_ROWS
        self.capacity = capacity
        self.block_size = block_size
        self.waiting: list[Sequence] = []  # in order
        self.running: list[Sequence] = []  # in order
        self.num_preemptions = 0
        self._arrivals: dict[str, int] = {}
        self._num_arrived = 0

    def add(self, sequence: Sequence, arrival: int | None = None) -> None:
        """Queue a sequence, at the place of an earlier `arrival` if there is one. Raises
        RequestError when its id is in use or it can never fit."""
        request = sequence.request
        if sequence.id in self._arrivals:
            raise RequestError(
                f"request id {sequence.id!r} is in use; give each request its own", "id"
            )
        self.check(request)
        if arrival is None:
            arrival = self._num_arrived
            self._num_arrived += 1
        self._arrivals[sequence.id] = arrival
        insort(self.waiting, sequence, key=self.order)

    def check(self, request: Request) -> None:
        """RequestError when it can never fit."""
        num_prompt = len(request.prompt_ids)
        needed = num_prompt + request.max_tokens - 1  # the last token needs no K/V
        if needed > self.capacity:
            raise RequestError(
                f"prompt of {num_prompt} tokens and max_tokens {request.max_tokens} need "
                f"{needed} KV positions, the cache holds {self.capacity}; shorten one of them or "
                f"give the KV cache more memory",
                "max_tokens",
            )

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended or is cut, wherever it is; the engine frees its KV."""
        del self._arrivals[sequence.id]
        queue = self.running if sequence in self.running else self.waiting
        queue.remove(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def order(self, sequence: Sequence) -> tuple[int, int]:
        """(priority, arrival): who goes first. Kept through preemption."""
        return sequence.request.priority, self._arrivals[sequence.id]

    def plan(self, kv: KVStore, draft_budget: int = 0, max_per_sequence: int = 0) -> Plan:
        """Choose this step's rows and reserve them in `kv`.

        draft_budget: draft nodes the engine would like to verify over the whole batch.
        max_per_sequence: draft nodes of one sequence at most.
        """
        step = _Step(self, kv, draft_budget, max_per_sequence, self.read_rows)
        step.decodes()
        step.share_rows()
        step.prompts()
        step.drafts()
        assert step.entries or not self.has_work, (
            "no sequence can advance: KV is held by nobody here"
        )
        return Plan(
            tuple(step.entries.values()),
            step.draft_total,
            tuple(step.admitted),
            tuple(step.preempted),
        )


@dataclass(slots=True)
class _Step:
    """A plan in the making. The methods run once each, in the order they are written."""

    scheduler: Scheduler
    kv: KVStore
    draft_budget: int
    max_per_sequence: int
    read_rows: int  # prompt rows whose logprobs may still be read
    entries: dict[str, Entry] = field(default_factory=dict)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    prefill_rows: int = 0  # what prompts may still take
    draft_total: int = 0

    def decodes(self) -> None:
        for sequence in tuple(self.scheduler.running):
            if sequence not in self.preempted and self._pending(sequence) == 1:
                self._schedule(sequence, 1)

    def share_rows(self) -> None:
        """Prompts get what the drafts do not want, and at least half."""
        wanted = sum(self._draft_limit(entry) for entry in self.entries.values())
        left = self._rows_left()
        self.prefill_rows = max(left - min(wanted, self.draft_budget), (left + 1) // 2)

    def prompts(self) -> None:
        """Started prefills and admissions, in order: of equal priority, the started come first."""
        scheduler, admitting = self.scheduler, True
        started = [sequence for sequence in scheduler.running if self._pending(sequence) > 1]
        while started or (admitting and scheduler.waiting):
            head = scheduler.waiting[0] if admitting and scheduler.waiting else None
            if started and (head is None or scheduler.order(started[0]) < scheduler.order(head)):
                sequence = started.pop(0)
                if self.prefill_rows and sequence not in self.preempted:
                    self._prefill(sequence)
            elif head is not None:
                admitting = self._admit(head)

    def drafts(self) -> None:
        total = min(self.draft_budget, self._rows_left())
        reserved = 0
        for entry in self.entries.values():
            limit = min(self._draft_limit(entry), total)
            room = -(entry.start + entry.count) % self.scheduler.block_size  # left in its last page
            for nodes in (limit, min(limit, room)):
                if nodes > 0 and self.kv.reserve(entry.sequence.id, entry.count + nodes):
                    entry.draft_limit = nodes
                    reserved += nodes
                    break
        self.draft_total = min(total, reserved)

    def _admit(self, sequence: Sequence) -> bool:
        """Move the head of the queue into the store and the pass; False if it has to wait."""
        scheduler, admitted = self.scheduler, False
        if sequence in self.preempted or not self._could_seat(sequence):
            return False
        try:
            known = sequence.token_ids[: cacheable(sequence) + 1]
            self.kv.begin(sequence.id, known, sequence.request.scope)
            if not self._awaits_pages(sequence) and self._find_place(sequence):
                insort(scheduler.running, sequence, key=scheduler.order)
                scheduler.waiting.remove(sequence)
                admitted = self._prefill(sequence) > 0
        finally:  # an error or an interrupt must not leave its room held by nobody
            if not admitted:
                self._send_back(sequence)
        if admitted:
            self.admitted.append(sequence)
        return admitted

    # Rows --------------------------------------------------------------------------------------

    def _rows_left(self) -> int:
        return self.scheduler.max_rows - sum(entry.count for entry in self.entries.values())

    def _pending(self, sequence: Sequence) -> int:
        """Known tokens without K/V: one for a decode, the root; more for a prompt or a resume."""
        return len(sequence.token_ids) - self.kv.length(sequence.id)

    def _draft_limit(self, entry: Entry) -> int:
        """No node past max_tokens: of r tokens to come, a path of r - 1 and the bonus are all."""
        if not entry.completes:
            return 0
        limit = entry.sequence.request.draft_limit
        most = self.max_per_sequence if limit is None else min(limit, self.max_per_sequence)
        return max(0, min(most, entry.sequence.remaining - 1))

    def _prefill(self, sequence: Sequence) -> int:
        """Schedule a chunk; returns its rows."""
        pending, start = self._pending(sequence), self.kv.length(sequence.id)
        rows = min(pending, self.prefill_rows, self._readable(sequence, start))
        if rows < pending:
            past_page_end = (start + rows) % self.scheduler.block_size
            rows -= past_page_end if past_page_end < rows else 0
        rows = self._schedule(sequence, rows) if rows else 0
        self.prefill_rows -= rows
        self.read_rows -= num_read(sequence, start, rows)
        return rows

    def _readable(self, sequence: Sequence, start: int) -> int:
        """Rows from `start` on that score no more prompt rows than are left."""
        unread = sequence.num_prompt - 1 - sequence.first_unread
        if unread <= self.read_rows:
            return len(sequence.token_ids)
        return sequence.first_unread - start + self.read_rows

    def _awaits_pages(self, sequence: Sequence) -> bool:
        """Whether somebody ahead, still reading its prompt, will soon have committed more pages
        that `sequence` begins with than it found in the cache."""
        if not self.kv.shares_prefixes:
            return False
        scheduler, page = self.scheduler, self.scheduler.block_size
        most, found = cacheable(sequence), self.kv.length(sequence.id)
        for other in scheduler.running:
            if scheduler.order(other) > scheduler.order(sequence):
                return False
            if self._pending(other) > 1 and same_cache(sequence, other):
                equal = min(most, common_prefix(sequence.token_ids, other.token_ids))
                if equal // page * page > max(found, self.kv.length(other.id)):
                    return True
        return False

    def _schedule(self, sequence: Sequence, rows: int) -> int:
        """Reserve up to `rows` rows, at the expense of those behind; returns the rows."""
        while not self.kv.reserve(sequence.id, rows):
            last = self.scheduler.running[-1]
            if last is not sequence:
                self._preempt(last)
            elif rows > 1:
                rows //= 2
            else:
                return 0
        start = self.kv.length(sequence.id)
        completes = start + rows == len(sequence.token_ids)
        self.entries[sequence.id] = Entry(sequence, start, rows, completes)
        return rows

    # Room --------------------------------------------------------------------------------------

    def _send_back(self, sequence: Sequence) -> None:
        """To its old place in the queue, without its room."""
        scheduler = self.scheduler
        self.kv.free(sequence.id)
        if sequence not in scheduler.waiting:
            insort(scheduler.waiting, sequence, key=scheduler.order)
        if sequence in scheduler.running:
            scheduler.running.remove(sequence)

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.id in self.entries:
            entry = self.entries.pop(sequence.id)
            self.prefill_rows += entry.count
            self.read_rows += num_read(sequence, entry.start, entry.count)
        self._send_back(sequence)
        self.scheduler.num_preemptions += 1
        assert sequence not in self.admitted, "admissions go in order: nobody behind can push out"
        self.preempted.append(sequence)

    def _less_urgent(self, sequence: Sequence) -> list[Sequence]:
        """Running sequences of a strictly lower priority, the last in order at the end."""
        priority = sequence.request.priority
        return [other for other in self.scheduler.running if other.request.priority > priority]

    def _seats_left(self) -> int:
        return self.scheduler.max_running - len(self.scheduler.running)

    def _could_seat(self, sequence: Sequence) -> bool:
        """A seat and at least one row, perhaps those of the last sequence of a lower priority."""
        if self._seats_left():
            return self.prefill_rows > 0
        victims = self._less_urgent(sequence)
        return bool(victims) and (self.prefill_rows > 0 or victims[-1].id in self.entries)

    def _find_place(self, sequence: Sequence) -> bool:
        """A seat, and room for all of a new prompt? Sequences of a lower priority give theirs, but
        only if that is enough."""
        pending = self._pending(sequence)
        victims = self._less_urgent(sequence)
        page = self.scheduler.block_size
        held = sum(len(victim.token_ids) + page for victim in victims)  # by them or for them
        if self._unpromised() + held < pending:
            return False
        while victims and (not self._seats_left() or self._unpromised() < pending):
            self._preempt(victims.pop())
        return self._unpromised() >= pending

    def _unpromised(self) -> int:
        """Free tokens beside what started prefills have yet to take and a page of growth for each
        running sequence: whoever is admitted should not be preempted in the next step."""
        promised = len(self.scheduler.running) * self.scheduler.block_size
        for sequence in self.scheduler.running:
            entry = self.entries.get(sequence.id)
            promised += self._pending(sequence) - (entry.count if entry else 0)
        return self.kv.num_free_tokens - promised


def cacheable(sequence: Sequence) -> int:
    """Positions that a prefix cache may stand in for: never the last token, whose logits are
    needed, nor the first row of the prompt that is yet to be scored."""
    last = len(sequence.token_ids) - 1
    scored = sequence.first_unread
    return last if scored >= sequence.num_prompt - 1 else min(last, scored)


def num_read(sequence: Sequence, start: int, rows: int) -> int:
    """Prompt rows to be scored among rows [start, start + rows)."""
    first = max(start, sequence.first_unread)
    return max(0, min(start + rows, sequence.num_prompt - 1) - first)


def same_cache(one: Sequence, other: Sequence) -> bool:
    """Whether equal tokens of these two have equal keys and values, and may be shared."""
    left, right = one.request, other.request
    return (left.salt, left.adapter) == (right.salt, right.adapter)


def common_prefix(left: SequenceOf[int], right: SequenceOf[int]) -> int:
    """Tokens that both begin with; compared in slices, whose cost is that of a copy."""
    low, high = 0, min(len(left), len(right))  # equal up to low; not known beyond
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
