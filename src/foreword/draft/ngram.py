"""Prompt lookup: what followed the last n tokens earlier in this sequence will follow them again.

Idea: prompt lookup (Saxena 2023; LLMA, arXiv 2304.04487) with several n at once and a trie instead
of one copy. The matches of the current suffix are ordered by length, then by recency, and walk on
together: matches that continue alike share a node, matches that differ become siblings. A walk
that reaches the end of the history goes on in its own draft, so a loop is followed round and round.

Score: a match of length m is right with a prior chance that grows with m. In order, each match
takes that share of what the matches before it left (half of it, after the first); matches that
agree add up. Once a node is accepted its matches are one longer, so scores rise along a path (as
measured: 0.95 said, 0.95 accepted at depth 3 and more) while reach, their product, falls.

Cost: per committed token one table entry for each n; per proposed node about five microseconds.
Memory: a few hundred bytes per token of history, released by `end`. Token ids only, no model.
Loses on text that does not repeat itself: the drafted rows are wasted.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from foreword.config import positive
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0

LONGEST = 16  # match lengths beyond this count as this
# Chance that the first match is right, by its length: 17 greedy outputs of SmolLM2-135M-Instruct
# (8 edits, 6 free texts, 3 questions; 120 tokens each), smoothed.
CONFIDENCE = (
    *(0.0, 0.18, 0.35, 0.65, 0.74, 0.8, 0.85, 0.89),
    *(0.91, 0.92, 0.93, 0.93, 0.94, 0.94, 0.95, 0.95, 0.95),
)
LATER = 0.5  # a match after the first is about half as often right

Match = tuple[int, int]  # (position of the continuation's next token, length of the match so far)


@dataclass(frozen=True, slots=True)
class Config:
    """prompt_lookup_max, prompt_lookup_min: longest and shortest n looked up (longer matches are
    recognised from the longest). num_matches: earlier places followed at once."""

    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 1
    num_matches: int = 8

    def __post_init__(self) -> None:
        positive(self, "prompt_lookup_max", "prompt_lookup_min", "num_matches")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ConfigError(
                f"prompt_lookup_min ({self.prompt_lookup_min}) must not exceed "
                f"prompt_lookup_max ({self.prompt_lookup_max})"
            )


class _Index:
    """Where each n-gram of one sequence occurred, brought up to date token by token."""

    def __init__(self, token_ids: list[int], config: Config) -> None:
        self.token_ids = token_ids  # the sequence's own list: it grows under us
        self.sizes = tuple(range(config.prompt_lookup_min, config.prompt_lookup_max + 1))
        self.num_matches = config.num_matches
        self.length = 0  # tokens indexed
        self.grams = [0] * (self.sizes[-1] + 1)  # [n]: the last n ids, packed into one number
        self.latest: list[dict[int, int]] = [{} for _ in self.sizes]  # n-gram -> what follows it
        self.earlier: list[list[int]] = [[] for _ in self.sizes]  # position -> the one before, -1

    def extend(self) -> None:
        """Index tokens [length, len(token_ids)): an n-gram enters when its next token is known, so
        the suffix that is looked up never finds itself."""
        for position in range(self.length, len(self.token_ids)):
            for size, latest, earlier in zip(self.sizes, self.latest, self.earlier, strict=True):
                if size > position:
                    earlier.append(-1)
                    continue
                gram = self.grams[size]
                earlier.append(latest.get(gram, -1))
                latest[gram] = position
            token = self.token_ids[position]
            for size in range(self.sizes[-1], 0, -1):
                self.grams[size] = self.grams[size - 1] << 32 | token  # grams[0] stays 0
        self.length = len(self.token_ids)

    def matches(self) -> list[Match]:
        """Continuations of the current suffix: longest match first, then most recent."""
        found: dict[int, int] = {}
        for level in range(len(self.sizes) - 1, -1, -1):
            size = self.sizes[level]
            if size > self.length:
                continue
            position = self.latest[level].get(self.grams[size], -1)
            while position >= 0 and len(found) < self.num_matches:
                if position not in found:
                    longest = level == len(self.sizes) - 1
                    found[position] = self._matched(position, size) if longest else size
                position = self.earlier[level][position]
        return sorted(found.items(), key=lambda match: (-match[1], -match[0]))

    def _matched(self, position: int, known: int) -> int:
        """How many tokens before `position` equal the suffix, `known` at least, LONGEST at most."""
        ids, shift, length = self.token_ids, self.length - position, known
        while length < min(LONGEST, position):
            before = position - 1 - length
            if ids[before] != ids[before + shift]:
                break
            length += 1
        return length


class NgramDrafter:
    """One index per sequence; nothing is shared between sequences."""

    name = "ngram"

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._context = context
        self._indexes: dict[str, _Index] = {}

    def begin(self, sequence: Sequence) -> None:
        self._indexes[sequence.id] = _Index(sequence.token_ids, self._config)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [
            self._draft(sequence, limit) for sequence, limit in zip(sequences, budget, strict=True)
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            index = self._indexes.get(outcome.sequence.id)
            if index is not None:
                index.extend()

    def end(self, sequence: Sequence) -> None:
        self._indexes.pop(sequence.id, None)

    def _draft(self, sequence: Sequence, budget: int) -> Trie:
        """The `budget` nodes of highest reach, found best first."""
        trie, depth = Trie(), self._context.depth_for(sequence)
        if budget < 1 or depth < 1:
            return trie
        index = self._indexes[sequence.id]
        index.extend()
        # (-reach, order of discovery, parent, path that ends with the node's token, score, matches)
        frontier: list[tuple[float, int, int, tuple[int, ...], float, list[Match]]] = []
        path: tuple[int, ...] = ()
        reach, node, matches, order = 1.0, -1, index.matches(), 0
        while True:
            if len(path) < depth:
                for token, score, agreeing in self._children(index.token_ids, path, matches):
                    order += 1
                    entry = (-reach * score, order, node, (*path, token), score, agreeing)
                    heapq.heappush(frontier, entry)
            if not frontier or len(trie) == budget:
                return trie
            negative, _, parent, path, score, matches = heapq.heappop(frontier)
            reach = -negative
            node = trie.add(parent, path[-1], score, self.name)

    def _children(
        self, ids: list[int], path: tuple[int, ...], matches: list[Match]
    ) -> list[tuple[int, float, list[Match]]]:
        """Next tokens of `matches` after the drafted `path`: (token, score, matches that agree)."""
        children: dict[int, tuple[float, list[Match]]] = {}
        left, trust, size = 1.0, 1.0, len(ids)
        for position, length in matches:
            token = ids[position] if position < size else path[position - size]
            if token >= self._context.vocab_size:
                continue
            share = left * trust * CONFIDENCE[min(length, LONGEST)]
            left, trust = left - share, LATER
            score, agreeing = children.get(token, (0.0, []))
            agreeing.append((position + 1, length + 1))
            children[token] = (score + share, agreeing)
        return [(token, score, agreeing) for token, (score, agreeing) in children.items()]


def make(config: Config, context: DraftContext) -> Drafter:
    return NgramDrafter(config, context)
