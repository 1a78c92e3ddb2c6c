"""Adaptive n-grams: at every level the most frequent continuation, shorter contexts on a miss.

Idea: ANPD (arXiv 2404.08698). Counts of what followed each context of 1 .. max_ngram - 1 tokens,
from the prompt and every committed token. There the highest level that knows its context decides
alone; here its counts are blended with those of the levels below as in prediction by partial
matching (Cleary and Witten 1984, escape method C): a context that has seen `total` tokens, `kinds`
of them different, keeps total / (total + kinds) for what it has seen and leaves the rest to the
context one shorter. So a node's score is an estimate of a probability, and a trie costs no more
than a chain.

Evidence of a node: the level that proposed it, the longest one. Cost: per committed token a count
for each level; per drafted node about 10 us. Memory: a few hundred bytes per token of history and
level, released by `end`. Unlike `ngram` it knows how often but not where: after a long match it
does not follow one place of the text. Loses on text that does not repeat itself.
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


@dataclass(frozen=True, slots=True)
class Config:
    """max_ngram: longest n-gram counted, context and next token, >= 2. num_branches: continuations
    of one node at most."""

    max_ngram: int = 5
    num_branches: int = 4

    def __post_init__(self) -> None:
        positive(self, "max_ngram", "num_branches")
        if self.max_ngram < 2:
            raise ConfigError(f"max_ngram must be >= 2, got {self.max_ngram}; 2 counts pairs")


Context = tuple[int, ...]  # the last tokens, oldest first
Counts = dict[int, int]  # next token -> how often; in order of first sight


class _Table:
    """Counts of one sequence, brought up to date token by token."""

    def __init__(self, token_ids: list[int], longest: int) -> None:
        self.token_ids = token_ids  # the sequence's own list: it grows under us
        self.longest = longest  # tokens of a context at most
        self.length = 0  # tokens counted
        self.after: dict[Context, Counts] = {}

    def extend(self) -> None:
        """Count tokens [length, len(token_ids))."""
        ids, after = self.token_ids, self.after
        for position in range(self.length, len(ids)):
            token = ids[position]
            for size in range(1, min(self.longest, position) + 1):
                counts = after.setdefault(tuple(ids[position - size : position]), {})
                counts[token] = counts.get(token, 0) + 1
        self.length = len(ids)

    def likely(self, context: Context) -> dict[int, tuple[float, int]]:
        """Next token -> (probability, longest level that knows it), blended over the levels."""
        found: dict[int, tuple[float, int]] = {}
        left = 1.0
        for size in range(len(context), 0, -1):
            counts = self.after.get(context[len(context) - size :])
            if counts is None:
                continue
            share = left / (sum(counts.values()) + len(counts))
            for token, count in counts.items():
                score, level = found.get(token, (0.0, size))
                found[token] = (score + share * count, level)
            left = share * len(counts)
        return found


class AnpdDrafter:
    """One table per sequence; nothing is shared between sequences."""

    name = "anpd"

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._context = context
        self._tables: dict[str, _Table] = {}

    def begin(self, sequence: Sequence) -> None:
        self._tables[sequence.id] = _Table(sequence.token_ids, self._config.max_ngram - 1)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [
            self._draft(sequence, limit) for sequence, limit in zip(sequences, budget, strict=True)
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            table = self._tables.get(outcome.sequence.id)
            if table is not None:
                table.extend()

    def end(self, sequence: Sequence) -> None:
        self._tables.pop(sequence.id, None)

    def _draft(self, sequence: Sequence, budget: int) -> Trie:
        """The `budget` nodes of highest reach, found best first."""
        trie, depth = Trie(), self._context.depth_for(sequence)
        if budget < 1 or depth < 1:
            return trie
        table = self._tables[sequence.id]
        table.extend()
        # (-reach, order of discovery, parent, depth, context that ends in the token, score, level)
        frontier: list[tuple[float, int, int, int, Context, float, int]] = []
        context = tuple(table.token_ids[-table.longest :])
        reach, node, level, order = 1.0, -1, 0, 0
        while True:
            if level < depth:
                for token, score, known in self._children(table, context):
                    order += 1
                    longer = (*context, token)[-table.longest :]
                    entry = (-reach * score, order, node, level + 1, longer, score, known)
                    heapq.heappush(frontier, entry)
            if not frontier or len(trie) == budget:
                return trie
            negative, _, parent, level, context, score, known = heapq.heappop(frontier)
            reach = -negative
            node = trie.add(parent, context[-1], score, self.name, known)

    def _children(self, table: _Table, context: Context) -> list[tuple[int, float, int]]:
        """(token, score, level) of the likeliest continuations; equal ones in the order seen."""
        likely = [
            (token, *what)
            for token, what in table.likely(context).items()
            if token < self._context.vocab_size
        ]
        return sorted(likely, key=lambda child: -child[1])[: self._config.num_branches]


def make(config: Config, context: DraftContext) -> Drafter:
    return AnpdDrafter(config, context)
