"""Go on as another sample of the same prompt did: at the same place, or after the same tokens.

Idea: multi-sample speculation (arXiv 2503.05330). The outputs of a group, n samples of one prompt,
grow in one suffix automaton. A sample whose output so far is the beginning of a sibling's stands in
a state that knows how the sibling went on; else its longest suffix that occurred in a sibling (or
earlier in itself) does. Branches are weighed by how many samples took them.

Score: see _ways.py. Evidence: tokens matched, at most 31; 32 more where all output so far matched.

Cost: about 4 microseconds per committed token, 4 per proposed node. Memory: 400 bytes per output
token of a group, until its last sample has left. Nothing is kept beyond, so frozen learning changes
nothing. Loses where samples are alone, or run in step: then nobody is ahead.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from foreword.draft._automaton import ROOT, SuffixAutomaton
from foreword.draft._context import DraftContext
from foreword.draft._ways import MOST, ways_on
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0  # with a sibling that is ahead

# (-reach, order of discovery, parent, level, token, score, evidence, state and length after it)
Entry = tuple[float, int, int, int, int, float, int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Config:
    """No options."""


class _Group:
    """The outputs of one prompt's samples, each after the prompt's last token."""

    def __init__(self) -> None:
        self.automaton = SuffixAutomaton()
        self.states: dict[str, int] = {}  # of each sample, those that left too
        self.lengths: dict[str, int] = {}  # output tokens read
        self.running: set[str] = set()

    def read(self, sequence: Sequence) -> None:
        start = self.lengths.get(sequence.id, -1)
        if start < sequence.num_output:
            tokens = sequence.token_ids[sequence.num_prompt + start :]
            state = self.states.get(sequence.id, ROOT)
            self.states[sequence.id] = self.automaton.grow(state, tokens)
            self.lengths[sequence.id] = sequence.num_output


class SiblingsDrafter:
    """One automaton per group; a sequence without a group gets no drafts."""

    name = "siblings"

    def __init__(self, context: DraftContext) -> None:
        self._context = context
        self._groups: dict[tuple[str, str], _Group] = {}  # by salt and group

    def begin(self, sequence: Sequence) -> None:
        if sequence.request.group is not None:
            group = self._groups.setdefault(_key(sequence), _Group())
            group.running.add(sequence.id)
            group.read(sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [
            self._draft(sequence, limit) for sequence, limit in zip(sequences, budget, strict=True)
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            group = self._groups.get(_key(outcome.sequence))
            if group is not None:
                group.read(outcome.sequence)

    def end(self, sequence: Sequence) -> None:
        group = self._groups.get(_key(sequence))
        if group is not None:
            group.running.discard(sequence.id)
            if not group.running:
                del self._groups[_key(sequence)]

    def _draft(self, sequence: Sequence, budget: int) -> Trie:
        """The `budget` nodes of highest reach, found best first."""
        trie, depth = Trie(), self._context.depth_for(sequence)
        group = self._groups.get(_key(sequence))
        if budget < 1 or depth < 1 or group is None or len(group.states) < 2:
            return trie
        group.read(sequence)
        automaton, state = group.automaton, group.states[sequence.id]
        matched = automaton.size[state]
        whole = matched  # a match as long as this is all of the output
        frontier: list[Entry] = []
        order, node, level, reach = 0, -1, 0, 1.0
        while True:
            if level < depth:
                for token, (score, after, length) in ways_on(automaton, state, matched).items():
                    if token < self._context.vocab_size:
                        order += 1
                        evidence = min(length - 1, MOST) + 32 * (length == whole + level + 1)
                        entry = (-reach * score, order, node, level, token, score, evidence)
                        heapq.heappush(frontier, (*entry, (after, length)))
            if not frontier or len(trie) == budget:
                return trie
            negative, _, parent, level, token, score, evidence, place = heapq.heappop(frontier)
            state, matched = place
            node = trie.add(parent, token, score, self.name, evidence)
            reach, level = -negative, level + 1


def _key(sequence: Sequence) -> tuple[str, str]:
    return sequence.request.scope, sequence.request.group or ""


def make(config: Config, context: DraftContext) -> Drafter:
    return SiblingsDrafter(context)
