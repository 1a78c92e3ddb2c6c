"""The target drafts for itself with some of its layers left out.

Idea: SWIFT (arXiv 2410.06916), for a whole batch. A unit is the attention or the MLP of a layer;
`skip_share` of the units are left out, the first and the last layer's never; at first evenly spaced
ones (as unified layer skipping, arXiv 2404.06954). All sequences share one set, so their products
stay one batch. It drafts a path level by level as `model` does, with the target's noise at
temperature > 0, and stops where its reach falls below `confidence_threshold`. Keys and values of
the history are the target's own (see _ahead.py): no store, no catching up.

The set is searched for while decoding. Every `search_every` steps the set in use and one that
differs in one unit read the last tokens of the sequences again; the one that would have chosen more
of them stays. Search ends after `max_trials` trials, or `patience` without a gain. With learning
off there is none.

Cost: a pass of what is left of the layers, and the LM head, for each level. Loses on small models:
they have few layers to spare, and the head is a large part of what remains.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from foreword.config import positive, share
from foreword.draft._ahead import Ahead, Line
from foreword.draft._context import DraftContext, keep_best
from foreword.errors import NonFiniteLogits
from foreword.protocols import Drafter, Logits, Sampler
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset({"layers"})
acceptance_floor = 4.0


@dataclass(frozen=True, slots=True)
class Config:
    """skip_share: of the units that may be left out, [0, 1]. num_branches: children per level (the
    best one continues). confidence_threshold: reach below which a path is not continued, [0, 1].
    window: tokens of a sequence read again in a trial. search_every: steps from trial to trial.
    max_trials, patience: see above."""

    skip_share: float = 0.45
    num_branches: int = 3
    confidence_threshold: float = 0.4
    window: int = 15
    search_every: int = 4
    max_trials: int = 200
    patience: int = 50

    def __post_init__(self) -> None:
        positive(self, "num_branches", "window", "search_every", "max_trials", "patience")
        share(self, "skip_share", "confidence_threshold")


@dataclass(slots=True)
class _Path:
    """One sequence while it is drafted for."""

    sequence: Sequence
    depth: int  # levels wanted
    trie: Trie
    node: int = -1  # end of the path
    reach: float = 1.0
    level: int = 0  # levels done
    room: int = 0  # rows that may still be read


class SkipDrafter:
    """`skip` is what is left out now, the same for every sequence."""

    name = "skip"

    def __init__(
        self, config: Config, context: DraftContext, ahead: Ahead, sampler: Sampler
    ) -> None:
        self._config = config
        self._context = context
        self._ahead = ahead
        self._sampler = sampler
        self._optional = range(2, ahead.num_units - 2)
        self.skip = spread(self._optional, round(config.skip_share * len(self._optional)))
        self._random = random.Random(0)
        self._steps = 0
        self._trials = 0
        self._vain = 0  # trials since the last gain

    def begin(self, sequence: Sequence) -> None:
        pass

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        tries = [Trie() for _ in sequences]
        paths = []
        for sequence, limit, trie in zip(sequences, budget, tries, strict=True):
            depth = min(self._context.depth_for(sequence), limit)
            if depth > 0:
                paths.append(_Path(sequence, depth, trie))
        self._search([path.sequence for path in paths])
        active, logits = self._first_pass(paths)
        while active:
            on = [self._branch(*pair) for pair in zip(active, logits, strict=True)]
            active = [path for path, goes_on in zip(active, on, strict=True) if goes_on]
            logits = self._next_pass(active)
        return [keep_best(trie, limit) for trie, limit in zip(tries, budget, strict=True)]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        pass

    def end(self, sequence: Sequence) -> None:
        pass

    # Drafting ------------------------------------------------------------------------------------

    def _first_pass(self, paths: list[_Path]) -> tuple[list[_Path], SequenceOf[Logits]]:
        """Read the root and whatever else the target does not hold; a long prompt's end waits for
        the next step."""
        lines, active = [], []
        for path in paths:
            held = self._ahead.held(path.sequence)
            missing = path.sequence.token_ids[held:]
            path.room = self._ahead.room(path.sequence) - len(missing)
            if path.room >= 0 and len(missing) <= self._config.window:
                lines.append(Line(path.sequence, held, missing))
                active.append(path)
        return active, self._read(lines)

    def _next_pass(self, paths: list[_Path]) -> SequenceOf[Logits]:
        """Read the end of each path."""
        lines = []
        for path in paths:
            path.room -= 1
            start = len(path.sequence.token_ids) + path.level - 1
            lines.append(Line(path.sequence, start, [path.trie.tokens[path.node]]))
        return self._read(lines)

    def _read(self, lines: list[Line]) -> SequenceOf[Logits]:
        return list(self._ahead.read(lines, self.skip)) if lines else []

    def _branch(self, path: _Path, row: Logits) -> bool:
        """Add the next level's children to the trie; true if the path goes on from the best."""
        sequence = path.sequence
        try:
            ranked = self._sampler.rank(
                row[: self._context.vocab_size],
                sequence.request.params,
                sequence.sampler_state,
                sequence.num_output + path.level,
                self._config.num_branches,
            )
        except NonFiniteLogits:
            return False  # the trouble of what is left of the model, not the request's
        if not ranked:
            return False
        children = [
            path.trie.add(path.node, *child, self.name, evidence=rank)
            for rank, child in enumerate(ranked)
        ]
        path.node = children[0]
        path.reach *= path.trie.scores[path.node]
        path.level += 1
        wanted = path.level < path.depth and path.reach >= self._config.confidence_threshold
        return wanted and path.room > 0

    # The search ----------------------------------------------------------------------------------

    def _search(self, sequences: list[Sequence]) -> None:
        """Now and then, try a set that differs from the one in use in one unit."""
        config = self._config
        self._steps += 1
        ended = self._trials >= config.max_trials or self._vain >= config.patience
        kept = [unit for unit in self._optional if unit not in self.skip]
        if not self._context.learning or ended or not self.skip or not kept:
            return
        lines = self._windows(sequences) if self._steps % config.search_every == 0 else []
        if not lines:
            return
        out, into = self._random.choice(sorted(self.skip)), self._random.choice(kept)
        candidate = self.skip - {out} | {into}
        self._trials += 1
        self._vain += 1
        if self._right(lines, candidate) > self._right(lines, self.skip):
            self.skip, self._vain = candidate, 0

    def _windows(self, sequences: list[Sequence]) -> list[Line]:
        """The last tokens before the root of each sequence, all of whose successors it emitted."""
        lines = []
        for sequence in sequences:
            last = len(sequence.token_ids) - 1
            rooms = self._config.window, sequence.num_output, self._ahead.room(sequence)
            count = min(*rooms, last)
            if self._ahead.held(sequence) == last and count > 1:
                tokens = sequence.token_ids[last - count : last]
                lines.append(Line(sequence, last - count, tokens, wanted=count))
        return lines

    def _right(self, lines: list[Line], skip: frozenset[int]) -> int:
        """How many of the tokens that followed are what the target without `skip` would choose."""
        rows, right, first = self._ahead.read(lines, skip), 0, 0
        for line in lines:
            for place in range(line.wanted):
                position = line.start + 1 + place - line.sequence.num_prompt
                followed = line.sequence.token_ids[line.start + 1 + place]
                right += self._choice(line.sequence, rows[first + place], position) == followed
            first += line.wanted
        return right

    def _choice(self, sequence: Sequence, row: Logits, position: int) -> int | None:
        params, state = sequence.request.params, sequence.sampler_state
        try:
            return self._sampler.rank(row, params, state, position, 1)[0][0]  # a guess
        except NonFiniteLogits:
            return None


def spread(units: range, count: int) -> frozenset[int]:
    """`count` of the units, evenly spaced."""
    return frozenset(units[index * len(units) // count] for index in range(count))


def make(config: Config, context: DraftContext) -> Drafter:
    assert context.ahead is not None, "build.py provides for needs"
    assert context.sampler is not None
    return SkipDrafter(config, context, context.ahead, context.sampler)
