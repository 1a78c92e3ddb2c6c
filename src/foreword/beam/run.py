"""Searches on an engine: every beam to expand is a request of one token, whatever else runs.

A beam's request has the prompt as its prompt and the beam as what it has emitted; its K and V stay
behind as prefix cache (KVStore.keep), so that the beams that go on from it share its pages and
compute one row each. So neither the scheduler nor the store knows beams: they are batched over
searches and with all other requests, wait, are preempted and evicted as any request, and the rows,
hence the scores, are those of the beam alone. Without a prefix cache each reads its prompt anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.beam.beams import Candidate, Rules, Search
from foreword.beam.best_first import BestFirst
from foreword.beam.params import BeamSearchParams
from foreword.beam.search import BeamSearch
from foreword.build import Progress
from foreword.errors import ForewordError
from foreword.types import Request, Sequence


@dataclass(slots=True, eq=False)
class Expanding:
    """A beam in the engine, as the door's other samples look."""

    sequence: Sequence
    ended: float | None = None

    def mark(self, now: float) -> None:
        if self.ended is None and self.sequence.finish_reason is not None:
            self.ended = now

    @property
    def found(self) -> list[Candidate]:
        """Raises what went wrong with its row."""
        if self.sequence.error is not None:
            raise self.sequence.error
        found: list[Candidate] = self.sequence.sampler_state.found
        return found


@dataclass(slots=True)
class Searching:
    """One prompt's search. `base`: its request, of which no token is ever emitted."""

    base: Request
    params: BeamSearchParams
    search: Search
    count: int  # candidates asked of each beam
    arrival: int | None = None  # of its first beam: later ones keep the place in the queue
    running: list[Expanding] = field(default_factory=list)
    passes: int = 0
    expanded: int = 0
    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    ended: float | None = None
    error: ForewordError | None = None

    @staticmethod
    def of(base: Request, params: BeamSearchParams) -> Searching:
        """RequestError when the parameters, a model's own defaults included, do not fit."""
        params.check_monotone(base.params)
        ends = base.eos_ids | frozenset(base.params.stop_token_ids or ())
        penalty, stopping = float(params.length_penalty), params.early_stopping
        rules = Rules(params.beam_width, base.max_tokens, ends, penalty, stopping, params.n)
        search = BestFirst(rules) if params.best_first else BeamSearch(rules)
        return Searching(base, params, search, params.beam_width + len(ends))

    def requests(self) -> list[tuple[Request, tuple[int, ...]]]:
        """A request for each beam wanted, and what it has emitted."""
        wanted = []
        for beam in self.search.wanted():
            self.expanded += 1
            name = f"{self.base.id}-{self.expanded}"
            length = len(beam.tokens) + 1
            request = replace(self.base, id=name, max_tokens=length, expand=self.count)
            wanted.append((request, beam.tokens))
        return wanted

    def take(self) -> None:
        """All beams of a step are there."""
        self.passes += 1
        try:
            self.search.give([one.found for one in self.running])
        except ForewordError as error:
            self.error = error
        self.running = []
        self.first = self.first or time.monotonic()

    @property
    def done(self) -> bool:
        return self.error is not None or not self.search.wanted()


def run(
    searches: SequenceOf[Searching],
    add: Callable[[Request, tuple[int, ...], int | None], tuple[Expanding, int]],
    step: Callable[[Any], None],
    retire: Callable[[list[Any]], None],
    progress: Progress | None = None,
) -> None:
    """Until all are done. `add` queues a beam and says its arrival; `step` advances the engine
    unless that beam has ended meanwhile; `retire` takes beams out, ended or not."""
    try:
        while any(not one.done for one in searches):
            for one in searches:
                if not one.running and not one.done:
                    for request, tokens in one.requests():
                        beam, arrival = add(request, tokens, one.arrival)
                        one.arrival = arrival
                        one.running.append(beam)
            beams = (beam for one in searches for beam in one.running)
            waiting = next((beam for beam in beams if beam.ended is None), None)
            if waiting is not None:  # else another caller's step has just ended them
                step(waiting)
            for one in searches:
                if one.running and all(beam.ended is not None for beam in one.running):
                    retire(list(one.running))
                    one.take()
                    one.ended = time.monotonic() if one.done else None
            if progress is not None:
                progress("searching", sum(one.done for one in searches), len(searches))
    finally:  # an error or an interrupt cuts what is left
        retire([beam for one in searches for beam in one.running])
