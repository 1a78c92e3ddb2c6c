"""The loop: plan -> draft -> tree -> verify -> accept -> commit -> emit.

Knows the seams (protocols.py), the scheduler and nothing behind them: no drafter, no model, no
file, no text. Whatever the drafters say and the scheduler decides, a sequence's tokens are those of
plain decoding: each comes from the target's own sampler on the target's own logits at that
position.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np

from foreword.errors import ForewordError
from foreword.protocols import (
    Acceptor,
    Approximate,
    Choose,
    Drafter,
    Guide,
    KVStore,
    Model,
    Pace,
    PromptReader,
    Sampler,
    TreeBuilder,
)
from foreword.scheduler import Entry, Plan, Scheduler
from foreword.types import (
    DraftTree,
    FinishReason,
    Outcome,
    Request,
    Sequence,
    SourceClock,
    SpeculationStats,
    Verdict,
)
from foreword.verify import Work, verify

NO_ROW = np.empty(0, dtype=np.float32)  # whoever reads it fails

log = logging.getLogger("foreword")


@dataclass(frozen=True, slots=True)
class Parts:
    """What build.py puts together."""

    model: Model
    kv: KVStore
    scheduler: Scheduler
    drafter: Drafter
    builder: TreeBuilder
    sampler: Sampler
    acceptor: Acceptor
    approximate: Callable[[Sequence], Approximate | None]  # for a request that asks; RequestError
    pace: Pace  # how many draft nodes a step may verify, and their price
    guide: Guide  # fits drafts to the forms that requests ask for
    guard: Callable[[], AbstractContextManager[None]]  # pins host switches around a step
    clock: SourceClock = field(default_factory=SourceClock)  # the one the drafter was made with


class Engine:
    """Runs requests to their end, one `step` at a time. Not thread-safe: one thread owns it."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.stats = SpeculationStats()
        self._drafting: set[str] = set()  # sequences the drafter has begun
        self._reader = parts.drafter if isinstance(parts.drafter, PromptReader) else None
        self._limited: dict[str, Sequence] = {}  # those with a time limit

    def add(
        self, request: Request, emitted: SequenceOf[int] = (), arrival: int | None = None
    ) -> Sequence:
        """Queue a request, as if it had emitted some tokens already (their logit rows are not
        known) and had come at an earlier `arrival`. RequestError if it can never fit, or asks for
        an acceptor it cannot have."""
        sequence = Sequence(request, [*request.prompt_ids, *emitted])
        sequence.sampler_state = self.parts.sampler.begin(request)
        sequence.acceptor = self.parts.approximate(sequence)
        for token in emitted:
            self.parts.sampler.advance(NO_ROW, sequence.sampler_state, token)
        self.parts.scheduler.add(sequence, arrival)
        if request.expires is not None:
            self._limited[sequence.id] = sequence
        return sequence

    def check(self, request: Request) -> None:
        """RequestError if the request could never fit."""
        self.parts.scheduler.check(request)

    def abort(self, sequence: Sequence) -> None:
        """Cut a request at its last emitted token; one that has left stays as it is."""
        scheduler = self.parts.scheduler
        if sequence in scheduler.running or sequence in scheduler.waiting:
            self._leave(sequence, sequence.finish_reason or "abort")

    @property
    def has_work(self) -> bool:
        return self.parts.scheduler.has_work

    def step(self) -> list[Sequence]:
        """Advance everything by one target pass; returns the sequences that emitted or ended."""
        started = time.perf_counter()
        expired = self._expire()
        with self.parts.guard():
            plan = self._plan()
            if not plan.entries:
                return expired
            works = self._draft(plan)
            before = time.perf_counter()
            with self.parts.clock.measure(""):
                rows = verify(self.parts.model, self.parts.kv, works)
            passed = time.perf_counter() - before
            outcomes = self._accept(plan.entries, works, rows)
            with self.parts.clock.measure(self.parts.drafter.name, calls=0):
                sound = [done for done in outcomes if _is_drafted(done.sequence)]
                self.parts.drafter.observe(sound)
            self._time(plan.entries, works, outcomes, passed, time.perf_counter() - started)
            return expired + self._emit(plan.entries, outcomes)

    def _expire(self) -> list[Sequence]:
        """Cut those whose time is up at their last emitted token."""
        now = time.monotonic() if self._limited else 0.0
        expired = [one for one in self._limited.values() if (one.request.expires or 0.0) <= now]
        for sequence in expired:
            self._leave(sequence, "timeout")
        return expired

    def _plan(self) -> Plan:
        scheduler = self.parts.scheduler
        total, each = self.parts.pace.nodes(max(1, len(scheduler.running)))
        plan = scheduler.plan(self.parts.kv, draft_budget=total, max_per_sequence=each)
        for sequence in plan.preempted:
            self._end_draft(sequence)
        return plan

    def _draft(self, plan: Plan) -> list[Work]:
        """Ask the drafter, spend the budget over the whole batch, and lay out each one's rows."""
        open_entries = [
            entry for entry in plan.entries if entry.completes and entry.sequence.request.max_tokens
        ]
        limits = [entry.draft_limit for entry in open_entries if _is_drafted(entry.sequence)]
        sequences = [entry.sequence for entry in open_entries if _is_drafted(entry.sequence)]
        for sequence in sequences:
            if sequence.id not in self._drafting:
                self._drafting.add(sequence.id)
                self.parts.drafter.begin(sequence)
        with self.parts.clock.measure(self.parts.drafter.name, calls=int(any(limits))):
            tries = self.parts.drafter.propose(sequences, limits)
        if any(limits) and any(one.request.grammar is not None for one in sequences):
            with self.parts.clock.measure("grammar"):
                tries = self.parts.guide.fit(sequences, tries, limits)
        roots = [sequence.token_ids[-1] for sequence in sequences]
        if any(map(len, tries)):
            rows = sum(entry.count for entry in plan.entries)
            budget = self.parts.pace.budget(sequences, rows, plan.draft_total, limits)
            built = [
                tree.with_laws(trie) if trie.laws else tree
                for tree, trie in zip(
                    self.parts.builder.build(roots, tries, budget), tries, strict=True
                )
            ]
        else:
            built = [DraftTree.root(root) for root in roots]
        trees = {
            entry.sequence.id: DraftTree.root(entry.sequence.token_ids[-1])
            for entry in open_entries
        }
        trees |= zip((sequence.id for sequence in sequences), built, strict=True)
        return [self._work(entry, trees.get(entry.sequence.id)) for entry in plan.entries]

    def _work(self, entry: Entry, tree: DraftTree | None) -> Work:
        certain = entry.sequence.token_ids[entry.start : entry.start + entry.count]
        adapter = entry.sequence.request.adapter
        return Work(entry.sequence.id, tuple(certain), tree, self._to_read(entry), adapter)

    def _to_read(self, entry: Entry) -> range:
        """Rows of this chunk that somebody wants to read: of a prompt whose logprobs are wanted all
        that are not known yet, for a drafter the last ones. Never the very last: it is a root."""
        sequence = entry.sequence
        end = sequence.num_prompt - 1
        first = max(entry.start, min(sequence.first_unread, self._first_hint(sequence)))
        last = min(entry.start + entry.count, end)
        return range(first - entry.start, max(first, last) - entry.start)

    def _first_hint(self, sequence: Sequence) -> int:
        """The first row of the prompt that the drafter wants to read."""
        rows = 0 if self._reader is None or not _is_drafted(sequence) else self._reader.prompt_rows
        return sequence.num_prompt - 1 - rows

    def _read(self, sequence: Sequence, start: int, rows: np.ndarray) -> None:
        """Rows after prompt tokens `start` and on: score what follows them, show the drafter its
        part."""
        params, first = sequence.request.params, sequence.first_unread - start
        if params.prompt_logprobs is not None and first < len(rows):
            followers = sequence.request.prompt_ids[start + first + 1 : start + len(rows) + 1]
            try:
                sequence.prompt_logprobs += self.parts.sampler.score(
                    rows[first:], followers, params.prompt_logprobs
                )
            except Exception as error:  # this request's own trouble; the others go on
                _failed(sequence, error)
        hint = max(0, self._first_hint(sequence) - start)
        if self._reader is not None and hint < len(rows):
            self._reader.read_prompt(sequence, start + hint, rows[hint:])

    def _time(
        self,
        entries: SequenceOf[Entry],
        works: SequenceOf[Work],
        outcomes: SequenceOf[Outcome],
        passed: float,
        whole: float,
    ) -> None:
        """Tell the pace what the step took; a pass that reads a prompt skips rows at the head."""
        if all(entry.count == 1 for entry in entries):
            segments = [
                (work.num_rows, entry.start) for entry, work in zip(entries, works, strict=True)
            ]
            self.parts.pace.passed(segments, passed)
            self.parts.pace.stepped(outcomes, whole - passed)

    def _accept(
        self,
        entries: SequenceOf[Entry],
        works: SequenceOf[Work],
        rows: SequenceOf[np.ndarray | None],
    ) -> list[Outcome]:
        """Walk each tree with the target's own choice, and keep only the accepted path's K and
        V."""
        outcomes = []
        for entry, work, wanted in zip(entries, works, rows, strict=True):
            sequence = entry.sequence
            path: tuple[int, ...] = ()
            if work.read:
                assert wanted is not None
                self._read(sequence, entry.start + work.read.start, wanted[: len(work.read)])
            if work.tree is not None and sequence.error is None:
                assert wanted is not None
                logits = wanted[len(work.read) :]
                verdict = self._walk(sequence, work.tree, logits)
                outcomes.append(Outcome(sequence, work.tree, verdict, logits))
                path = verdict.path
            if sequence.error is None:
                kept = work.kept_rows(path)
                held = sequence.token_ids[: entry.start + len(kept)]
                self.parts.kv.commit(sequence.id, kept, held)
                if entry.completes and work.tree is None:  # nothing but its prompt was wanted
                    sequence.finish_reason = "length"
        return outcomes

    def _walk(self, sequence: Sequence, tree: DraftTree, logits: np.ndarray) -> Verdict:
        before = len(sequence.token_ids)
        acceptor: Acceptor = sequence.acceptor or self.parts.acceptor
        try:
            verdict = acceptor.accept(tree, logits, self._chooser(sequence))
        except Exception as error:  # this request's own trouble; the others go on
            _failed(sequence, error)
            verdict = Verdict((), (), 0, True)
        emitted = sequence.token_ids[before:]
        sources = tree.guessed(emitted)
        sequence.sources += sources
        accepted = sum(source != "" for source in sources)
        for stats in (sequence.stats, self.stats):
            stats.add(tree.num_drafted, accepted, len(emitted))
            stats.credit(tree.sources, sources)
        return verdict

    def _chooser(self, sequence: Sequence) -> Choose:
        """Emits the next token of a sequence, exactly as plain decoding would at this position, or
        the one that the request's own acceptor lets through."""

        def choose(row: np.ndarray, token: int | None = None) -> tuple[int, bool]:
            given = () if token is None else (token,)
            params, state = sequence.request.params, sequence.sampler_state
            choice = self.parts.sampler.choose(row, params, state, sequence.num_output, *given)
            self.parts.sampler.advance(row, sequence.sampler_state, choice.token_id)
            sequence.token_ids.append(choice.token_id)
            if choice.logprobs is not None:
                sequence.logprobs.append(choice.logprobs)
            sequence.finish_reason = finish_reason(sequence, choice.token_id)
            return choice.token_id, sequence.finish_reason is not None

        return choose

    def _emit(self, entries: SequenceOf[Entry], outcomes: SequenceOf[Outcome]) -> list[Sequence]:
        told = {outcome.sequence.id: outcome.sequence for outcome in outcomes}
        for entry in entries:
            if entry.sequence.finish_reason is not None:
                self._leave(entry.sequence, entry.sequence.finish_reason)
                told[entry.sequence.id] = entry.sequence
        return list(told.values())

    def _leave(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self._limited.pop(sequence.id, None)
        self._end_draft(sequence)
        self.parts.scheduler.finish(sequence)
        if sequence.request.expand:
            self.parts.kv.keep(sequence.id, sequence.token_ids)
        else:
            self.parts.kv.free(sequence.id)

    def _end_draft(self, sequence: Sequence) -> None:
        if sequence.id in self._drafting:
            self._drafting.discard(sequence.id)
            self.parts.drafter.end(sequence)


def _failed(sequence: Sequence, error: Exception) -> None:
    sequence.error, sequence.finish_reason = error, "error"
    if not isinstance(error, ForewordError):
        log.error("request %s met a bug of Foreword's", sequence.id, exc_info=error)


def _is_drafted(sequence: Sequence) -> bool:
    """Whether the drafter knows it: a beam emits one token, and one that failed has left."""
    return not sequence.request.expand and sequence.error is None


def finish_reason(sequence: Sequence, token_id: int) -> FinishReason | None:
    """Why the request ends with the token just emitted, or None. An end token or stop string on the
    last allowed token is a stop."""
    request = sequence.request
    stopped = request.watch(token_id) if request.watch is not None else False
    if stopped or token_id in request.eos_ids or token_id in (request.params.stop_token_ids or ()):
        return "stop"
    return "length" if sequence.num_output >= request.max_tokens else None
