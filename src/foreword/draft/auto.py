"""The default: every source that earns its time, mixed by what its guesses have turned out to be.

Scores of different sources mean different things; `_calibration.py` turns each into the chance that
the guess is accepted, `_merge.py` makes one trie of all of them. The calibrated chance decides, no
order of precedence (Hierarchy Drafting, arXiv 2502.05609, has one). Tree builders then spend the
step's budget by reach, and their choice is as good as these chances.

A source is worth its time while the tokens it is credited with would take the engine twice as long
as asking and teaching it does (twice: their rows cost, too). One that is not is left alone for some
steps, as if every sequence had left it, then tried again; each failed trial doubles the pause. Time
is the engine's own: from one call of `propose` to the next, over the tokens of the whole batch that
came in between. What was learned is kept per salt. Frozen learning: no factor moves and nobody is
left alone.

Cost: its sources', and about three microseconds per node. Memory: `salts` calibrations, the last
trie of each running sequence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from foreword import compiled
from foreword.config import positive
from foreword.draft._calibration import Calibration
from foreword.draft._compiled import CompiledCalibration, CompiledMerged
from foreword.draft._context import DraftContext
from foreword.draft._merge import Merged
from foreword.errors import ConfigError
from foreword.protocols import Drafter, Logits, PromptReader
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0

MEMORY = 0.95  # share of the past that a step leaves in a running mean
MARGIN = 2.0  # what a source must bring of what it takes
OUTLIER = 3.0  # times the mean that a measurement counts at most
TRIAL = 20  # steps for which a source is asked before it is judged
PAUSE, LONGEST_PAUSE = 32, 1024  # steps for which it is left alone, first and at most


AnyCalibration = Calibration | CompiledCalibration


@dataclass(frozen=True, slots=True)
class Config:
    """sources: drafters that are asked; one that needs a draft model takes part where there is one.
    salts: salts whose calibration is remembered."""

    sources: tuple[str, ...] = ("suffix", "recycle")
    salts: int = 8

    def __post_init__(self) -> None:
        positive(self, "salts")
        names = self.sources if isinstance(self.sources, (list, tuple)) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"sources must be a list of drafters, got {self.sources!r}")
        if len(set(names)) < len(names):
            raise ConfigError(f"sources names a drafter twice: {', '.join(names)}")
        object.__setattr__(self, "sources", tuple(names))


def sources(config: Config) -> tuple[str, ...]:
    return config.sources


@dataclass(slots=True)
class _Source:
    """A drafter and what it has been worth lately, per step over the whole batch."""

    drafter: Drafter
    tokens: float = 0.0  # credited
    seconds: float = 0.0  # spent
    spent: float = 0.0  # in this step so far
    asked: int = 0  # steps since it was last left alone
    called: bool = False  # in this step, with room for an answer
    pause: int = PAUSE
    resting: int = 0  # steps for which it is still left alone

    def judge(self, token_seconds: float) -> None:
        """Leave it alone if its tokens would have come faster without it."""
        if self.asked < TRIAL or self.asked * self.seconds * MARGIN < token_seconds:
            return  # too early, or what was spent could not have bought a token yet
        if self.tokens * token_seconds >= MARGIN * self.seconds:
            self.pause = PAUSE
            return
        self.resting, self.asked = self.pause, 0
        self.pause = min(2 * self.pause, LONGEST_PAUSE)

    def paid(self, tokens: float) -> None:
        """The step is over and brought `tokens`."""
        share = max(1.0 - MEMORY, 1.0 / max(1, self.asked))
        self.tokens += share * (tokens - self.tokens)
        spent = min(self.spent, OUTLIER * self.seconds) if self.seconds else self.spent
        self.seconds += share * (spent - self.seconds)  # the first call is a slow one
        self.spent, self.called = 0.0, False


@dataclass(slots=True)
class _State:
    """What is kept of one sequence."""

    sequence: Sequence
    trust: Any  # _calibration.Trust, or its like of the extension
    merged: Any = None  # what was proposed last: _merge.Merged, or its like


class AutoDrafter:
    """Hands everything on to its sources."""

    name = "auto"

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._context = context
        self._sources = {name: _Source(drafter) for name, drafter in context.sources.items()}
        self._readers = [one for one in context.sources.values() if isinstance(one, PromptReader)]
        self._states: dict[str, _State] = {}
        self._loops = compiled.loops()
        # by salt, the last used at the end
        self._calibrations = {"": self._new_calibration()}
        self._token_seconds = 0.0
        self._emitted = 0  # tokens since the last propose
        self._proposed: float | None = None  # when that was

    def begin(self, sequence: Sequence) -> None:
        self._states[sequence.id] = _State(sequence, self._loops.Trust() if self._loops else {})
        for source in self._sources.values():
            if not source.resting:
                source.drafter.begin(sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        if self._context.learning:
            self._clock_in()
            if all(source.resting > 1 for source in self._sources.values()):
                for source in self._sources.values():
                    source.resting -= 1
                return [Trie() for _ in sequences]
        given = {one.drafter.name: self._ask(one, sequences, budget) for one in self._asked()}
        return [
            self._merge(sequence, limit, {name: tries[row] for name, tries in given.items()})
            for row, (sequence, limit) in enumerate(zip(sequences, budget, strict=True))
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for source in self._sources.values():
            if not source.resting:
                with self._timed(source, calls=0):
                    source.drafter.observe(outcomes)
        if not self._context.learning or not outcomes:
            return
        credit: dict[str, float] = {}
        for outcome in outcomes:
            emitted = outcome.verdict.tokens
            self._emitted += len(emitted)
            state = self._states.get(outcome.sequence.id)
            if state is None or state.merged is None:
                continue
            calibration = self._calibration(outcome.sequence)
            state.merged.learn(emitted, outcome.tree, calibration, state.trust)
            for name, share in state.merged.credit(emitted[: outcome.verdict.num_accepted]).items():
                credit[name] = credit.get(name, 0.0) + share
            state.merged = None
        for name, source in self._sources.items():
            if source.called and not source.resting:
                source.paid(credit.get(name, 0.0))

    def end(self, sequence: Sequence) -> None:
        self._states.pop(sequence.id, None)
        for source in self._sources.values():
            if source.resting and sequence.finish_reason is not None:
                source.drafter.begin(sequence)  # what has been written may be learned all the same
            if not source.resting or sequence.finish_reason is not None:
                source.drafter.end(sequence)
        if not self._states:
            self._proposed = None  # what comes now is no time of the engine's

    @property
    def calibrations(self) -> dict[str, AnyCalibration]:
        """By salt; for plots."""
        return self._calibrations

    @property
    def prompt_rows(self) -> int:
        """Last rows of a prompt that a source wants to read (protocols.PromptReader)."""
        return max((reader.prompt_rows for reader in self._readers), default=0)

    def read_prompt(self, sequence: Sequence, start: int, logits: Logits) -> None:
        for reader in self._readers:
            reader.read_prompt(sequence, start, logits)

    def _asked(self) -> list[_Source]:
        """The sources that take part in this step."""
        for source in self._sources.values():
            if source.resting:
                source.resting -= 1
                if not source.resting:
                    with self._timed(source, calls=0):
                        for state in self._states.values():
                            source.drafter.begin(state.sequence)
            elif self._context.learning:
                source.judge(self._token_seconds)
                if source.resting:
                    for state in self._states.values():
                        source.drafter.end(state.sequence)
        return [source for source in self._sources.values() if not source.resting]

    def _ask(
        self, source: _Source, sequences: SequenceOf[Sequence], budget: SequenceOf[int]
    ) -> list[Trie]:
        if self._context.learning:
            source.called = any(budget)
            source.asked += source.called
        with self._timed(source, calls=int(any(budget))):
            return source.drafter.propose(sequences, budget)

    @contextmanager
    def _timed(self, source: _Source, calls: int) -> Iterator[None]:
        """On the account of `source`, here and in the clock."""
        started = time.perf_counter()
        with self._context.clock.measure(source.drafter.name, calls=calls):
            yield
        if self._context.learning:
            source.spent += time.perf_counter() - started

    def _merge(self, sequence: Sequence, limit: int, tries: Mapping[str, Trie]) -> Trie:
        state = self._states[sequence.id]
        merged: Any = CompiledMerged(self._loops) if self._loops else Merged()
        calibration = self._calibration(sequence)
        kind = int(bool(sequence.request.params.temperature))
        for name, trie in tries.items():
            merged.add(trie, name, kind, calibration, state.trust)
        merged.combine(kind, calibration, state.trust)
        state.merged = merged
        best: Trie = merged.best(limit)
        return best

    def _calibration(self, sequence: Sequence) -> AnyCalibration:
        salt = sequence.request.scope if self._context.learning else ""
        found = self._calibrations.get(salt)
        if found is None:
            running = {state.sequence.request.scope for state in self._states.values()}
            idle = [name for name in self._calibrations if name not in running]
            for name in idle[: max(0, len(self._calibrations) - self._config.salts + 1)]:
                del self._calibrations[name]
            found = self._calibrations[salt] = self._new_calibration()
        elif len(self._calibrations) > 1:
            self._calibrations[salt] = self._calibrations.pop(salt)
        return found

    def _new_calibration(self) -> AnyCalibration:
        learning = self._context.learning
        return CompiledCalibration(self._loops, learning) if self._loops else Calibration(learning)

    def _clock_in(self) -> None:
        """Seconds of the engine for a token, a running mean."""
        now = time.perf_counter()
        if self._proposed is not None and self._emitted:
            seconds = (now - self._proposed) / self._emitted
            self._token_seconds = _mean(self._token_seconds, seconds)
        self._proposed, self._emitted = now, 0


def _mean(known: float, seconds: float) -> float:
    """A running mean that one late measurement cannot spoil; 0 = nothing known yet."""
    if not known:
        return seconds
    return known + (1.0 - MEMORY) * (min(seconds, OUTLIER * known) - known)


def make(config: Config, context: DraftContext) -> Drafter:
    if not context.sources:
        raise ConfigError(
            f"drafter 'auto' was given none of its sources ({', '.join(config.sources)}); name one "
            "that needs no draft model, or a model with --draft-model"
        )
    return AutoDrafter(config, context)
