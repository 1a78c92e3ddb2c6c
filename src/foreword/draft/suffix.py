"""Continue the longest earlier occurrence of the current suffix, as often as it went each way.

Idea: SAM-Decoding (arXiv 2411.10666) and ArcticInference's suffix decoding, with counts on the
branches. One automaton over prompt and output is shared by all running sequences of one prompt (the
samples of a request, equal prompts), so what one of them wrote is a continuation for the others;
another one holds what finished requests of the same salt wrote. Both are walked side by side.

Score: see _ways.py. After each drafted token the match is one longer, so scores rise along a path.
Evidence: tokens matched, at most 31; 32 more where only finished requests say so.

Cost: about 4 microseconds per committed token, 5 per proposed node. Memory: 400 bytes per token of
live history, and of at most 1.5 `shared_tokens`, or one text, for each of `shared_salts`. Frozen
learning: each sequence for itself. Loses where nothing is said twice.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any

from foreword import compiled
from foreword.config import positive, whole
from foreword.draft._archive import Archive
from foreword.draft._automaton import ROOT, SuffixAutomaton
from foreword.draft._compiled import trie_of
from foreword.draft._context import DraftContext
from foreword.draft._ways import MOST, Way, ways_on
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0

STRANGER = 0.6  # what a finished request did counts that much of what this prompt's own text did
LOWEST = 1e-3  # nodes reached less often are not looked for
RECENT = 32  # tokens matched against finished requests
NOWHERE: Way = (0.0, ROOT, 0)
NOWAYS: dict[int, Way] = {}

Place = tuple[int, int, int, int]  # state and length of the match, in the book and in the archive
# (-reach, order of discovery, parent, level, token, score, place after the token)
Entry = tuple[float, int, int, int, int, float, Place]


@dataclass(frozen=True, slots=True)
class Config:
    """shared_tokens: tokens of finished requests remembered per salt, 0 = none; shared_salts: salts
    remembered. group_tokens: tokens one prompt's running samples share at most."""

    shared_tokens: int = 32768
    shared_salts: int = 8
    group_tokens: int = 65536

    def __post_init__(self) -> None:
        whole(self, "shared_tokens", 0, 2**31)
        positive(self, "shared_salts", "group_tokens")


class _Book:
    """The automaton of one prompt and of what its running sequences wrote."""

    def __init__(self, automaton: Any, prompt: SequenceOf[int]) -> None:
        self.automaton = automaton  # a SuffixAutomaton, or its like of the extension
        self.after_prompt = automaton.grow(ROOT, prompt)
        self.users = 0
        self.paused: dict[str, tuple[int, int]] = {}  # by id: state and length of who was preempted


class _Reader:
    """One sequence's place in its book."""

    def __init__(self, book: _Book, sequence: Sequence) -> None:
        self.book = book
        known = book.paused.pop(sequence.id, None)  # read before, and counted
        self.state: int
        self.state, self.length = known or (book.after_prompt, sequence.num_prompt)
        self.read(sequence.token_ids)

    def read(self, token_ids: list[int]) -> None:
        if len(token_ids) > self.length:
            self.state = self.book.automaton.grow(self.state, token_ids, self.length)
            self.length = len(token_ids)


class SuffixDrafter:
    """A book for each prompt that runs, an archive of what has finished."""

    name = "suffix"

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._context = context
        self._loops = compiled.loops()
        self._new = self._loops.SuffixAutomaton if self._loops else SuffixAutomaton
        self._archive = Archive(config.shared_tokens, config.shared_salts, self._new)
        self._remembers = context.learning and config.shared_tokens > 0
        self._books: dict[tuple[object, ...], _Book] = {}
        self._readers: dict[str, _Reader] = {}

    def begin(self, sequence: Sequence) -> None:
        key = self._key(sequence)
        book = self._books.get(key)
        if book is None or book.automaton.num_tokens >= self._config.group_tokens:
            book = self._books[key] = _Book(self._new(), sequence.request.prompt_ids)
        book.users += 1
        self._readers[sequence.id] = _Reader(book, sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [
            self._draft(sequence, limit) for sequence, limit in zip(sequences, budget, strict=True)
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            reader = self._readers.get(outcome.sequence.id)
            if reader is not None:
                reader.read(outcome.sequence.token_ids)

    def end(self, sequence: Sequence) -> None:
        reader = self._readers.pop(sequence.id, None)
        if reader is None:
            return
        reader.book.users -= 1
        if sequence.finish_reason is None:
            reader.book.paused[sequence.id] = reader.state, reader.length
        key = self._key(sequence)
        if not reader.book.users and self._books.get(key) is reader.book:
            del self._books[key]
        if self._remembers and sequence.finish_reason in ("stop", "length"):
            start = sequence.num_prompt - 1
            self._archive.add(sequence.request.scope, sequence.token_ids[start:])

    def _key(self, sequence: Sequence) -> tuple[object, ...]:
        """Who shares a book: equal prompts of one salt; nobody where learning is frozen."""
        request = sequence.request
        if self._context.learning:
            return request.scope, request.prompt_ids
        return (sequence.id,)

    def _draft(self, sequence: Sequence, budget: int) -> Trie:
        """The `budget` nodes of highest reach, found best first."""
        depth = self._context.depth_for(sequence)
        if budget < 1 or depth < 1:
            return Trie()
        reader = self._readers[sequence.id]
        reader.read(sequence.token_ids)
        others = self._archive.of(sequence.request.scope) if self._remembers else None
        recent = sequence.token_ids[-RECENT:] if others is not None else []
        own, state, vocabulary = reader.book.automaton, reader.state, self._context.vocab_size
        if self._loops:
            limits = budget, depth, vocabulary
            found = self._loops.draft_suffix(own, state, others, recent, *limits)
            return trie_of(found, self.name)
        return self._search(own, state, others, recent, budget, depth)

    def _search(
        self,
        own: SuffixAutomaton,
        state: int,
        others: SuffixAutomaton | None,
        recent: list[int],
        budget: int,
        depth: int,
    ) -> Trie:
        """Both automata walked side by side; suffix_draft of native/suffix.cpp."""
        trie, vocabulary = Trie(), self._context.vocab_size
        matched, state_there, matched_there = own.size[state], ROOT, 0
        if others is not None:
            for token in recent:
                state_there, matched_there = others.step(state_there, matched_there, token)
        order, node, level, reach = 0, -1, 0, 1.0
        push, pop = heapq.heappush, heapq.heappop
        frontier: list[Entry] = []
        while True:
            if level < depth:
                ways = ways_on(own, state, matched)
                theirs = NOWAYS if others is None else ways_on(others, state_there, matched_there)
                for token, (score, after, length) in ways.items():
                    there = NOWHERE
                    if theirs and token in theirs:
                        there = theirs.pop(token)
                        score = max(score, STRANGER * there[0])
                    likely = reach * score
                    if likely >= LOWEST and token < vocabulary:
                        order += 1
                        place = (after, length, there[1], there[2])
                        push(frontier, (-likely, order, node, level, token, score, place))
                for token, (score, after, length) in theirs.items():
                    likely = reach * score * STRANGER
                    if likely >= LOWEST and token < vocabulary:
                        order += 1
                        place = (ROOT, 0, after, length)
                        push(
                            frontier, (-likely, order, node, level, token, score * STRANGER, place)
                        )
            if not frontier or len(trie) == budget:
                return trie
            negative, _, parent, level, token, score, place = pop(frontier)
            state, matched, state_there, matched_there = place
            evidence = min(matched - 1, MOST) if matched else min(matched_there - 1, MOST) + 32
            node = trie.add(parent, token, score, self.name, evidence)
            reach, level = -negative, level + 1


def make(config: Config, context: DraftContext) -> Drafter:
    return SuffixDrafter(config, context)
