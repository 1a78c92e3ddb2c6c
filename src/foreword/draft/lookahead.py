"""Lookahead: rows of the pass itself find n-grams that the model is likely to write later.

Idea: lookahead decoding (arXiv 2402.02057), which runs Jacobi iteration (arXiv 2305.10427) over a
window of guessed positions beside the verification. Here the window is part of the draft tree:

    root - a0 - b0 - c0      trunk a0 b0 c0: one guess for each of the next positions
            |    |    |      column below a trunk node: what the model said, step by step, would
            a1   b1   c1     follow it, up to `ngram_size` - 1 tokens with the trunk node
            |    |           so depth is position, and each node sees what it should see
            a2   b2

The target's row after the end of a column gives the column's next token. A full column and that
token are an n-gram: it enters a pool, from which guesses for the current token are drafted as
ordinary nodes. Then the column loses its first token, and all columns move left by the tokens
emitted. The pool also holds the n-grams of the prompt and of the committed text, the most recent
`num_guesses` of each first token.

Window nodes have a low score, evidence 0: they are worth rows for what they teach, and a builder
that pays for reach alone will not take them (then this is an n-gram pool). Guesses have their rank
in the pool, from 1, as evidence. With learning off nothing is taken from logits: no window.

Cost: `window` * (`ngram_size` - 1) rows in every pass, one arg-max for each column, about 5 us per
node. Memory: `num_guesses` n-grams for each different token of a sequence, released by `end`. Loses
where rows are not nearly free, and on text whose n-grams do not come back.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np

from foreword.config import positive
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.protocols import Drafter
from foreword.types import DraftTree, Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0

FIRST = (0.35, 0.2, 0.12, 0.08)  # chance of a guess's first token by rank, the last for the rest
LATER = 0.6  # of each token after it
WINDOW = 0.02  # of a window node
STRIDE = 7919  # picks tokens of the history for new columns


@dataclass(frozen=True, slots=True)
class Config:
    """window: columns. ngram_size: tokens of an n-gram, >= 2. num_guesses: n-grams kept for each
    first token."""

    window: int = 5
    ngram_size: int = 4
    num_guesses: int = 7

    def __post_init__(self) -> None:
        positive(self, "window", "ngram_size", "num_guesses")
        if self.ngram_size < 2:
            raise ConfigError(f"ngram_size must be >= 2, got {self.ngram_size}")


@dataclass(slots=True)
class _State:
    """One sequence: n-grams by their first token, most recent first, and the window."""

    token_ids: list[int]  # the sequence's own list: it grows under us
    pool: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)
    length: int = 0  # tokens whose n-grams are in the pool
    columns: list[list[int]] = field(default_factory=list)


class LookaheadDrafter:
    """Pools and windows are a sequence's own."""

    name = "lookahead"

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._context = context
        self._states: dict[str, _State] = {}

    def begin(self, sequence: Sequence) -> None:
        self._states[sequence.id] = _State(sequence.token_ids)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [
            self._draft(sequence, limit) for sequence, limit in zip(sequences, budget, strict=True)
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            state = self._states.get(outcome.sequence.id)
            if state is None:
                continue
            if state.columns:
                self._advance(state, outcome)
            self._extend(state)

    def end(self, sequence: Sequence) -> None:
        self._states.pop(sequence.id, None)

    def _draft(self, sequence: Sequence, budget: int) -> Trie:
        trie, depth = Trie(), self._context.depth_for(sequence)
        if budget < 1 or depth < 1:
            return trie
        state = self._states[sequence.id]
        self._extend(state)
        if self._context.learning:
            self._refill(state)
        rows = sum(map(len, state.columns))
        self._add_guesses(trie, state, depth, max(budget - rows, (budget + 1) // 2))
        self._add_window(trie, state, depth, budget)
        return trie

    # The pool ------------------------------------------------------------------------------------

    def _extend(self, state: _State) -> None:
        """The n-grams that end with tokens [length, len(token_ids))."""
        ids, size = state.token_ids, self._config.ngram_size
        for position in range(max(state.length, size - 1), len(ids)):
            self._keep(state, tuple(ids[position - size + 1 : position + 1]))
        state.length = len(ids)

    def _keep(self, state: _State, gram: tuple[int, ...]) -> None:
        known = state.pool.setdefault(gram[0], [])
        rest = gram[1:]
        if rest in known:
            known.remove(rest)
        known.insert(0, rest)
        del known[self._config.num_guesses :]

    def _add_guesses(self, trie: Trie, state: _State, depth: int, limit: int) -> None:
        """The n-grams of the current token as paths, each going on with the most recent n-gram of
        its last token."""
        for rank, guess in enumerate(state.pool.get(state.token_ids[-1], ())):
            node, level, path = -1, 0, guess
            score = FIRST[min(rank, len(FIRST) - 1)]
            while path and level < depth:
                for token in path[: depth - level]:
                    full = len(trie) >= limit and trie.child(node, token) is None
                    if full or token >= self._context.vocab_size:
                        level = depth
                        break
                    node = trie.add(node, token, score, self.name, rank + 1)
                    score, level = LATER, level + 1
                path = next(iter(state.pool.get(path[-1], ())), ())

    # The window ----------------------------------------------------------------------------------

    def _refill(self, state: _State) -> None:
        """One token for columns that are empty or missing at the right: what the pool knows to
        follow the column before, else some token of the history."""
        ids, columns = state.token_ids, state.columns
        columns += [[] for _ in range(self._config.window - len(columns))]
        before = ids[-1]
        for place, column in enumerate(columns):
            if not column:
                known = state.pool.get(before)
                column.append(
                    known[-1][0] if known else ids[STRIDE * (len(ids) + place) % len(ids)]
                )
            before = column[0]

    def _add_window(self, trie: Trie, state: _State, depth: int, limit: int) -> None:
        trunk = -1
        for place, column in enumerate(state.columns[:depth]):
            node = trunk
            for row, token in enumerate(column[: depth - place]):
                full = len(trie) >= limit and trie.child(node, token) is None
                if full or token >= self._context.vocab_size:
                    if row == 0:
                        return  # the trunk ends here
                    break
                node = trie.add(node, token, WINDOW, self.name)
                if row == 0:
                    trunk = node

    def _advance(self, state: _State, outcome: Outcome) -> None:
        """Each verified column gains the target's token and, once full, gives its n-gram and its
        first token away; all move left by what was emitted."""
        children = _children(outcome.tree)
        emitted, size = len(outcome.verdict.tokens), self._config.ngram_size
        moved: dict[int, list[int]] = {}
        trunk: int | None = 0
        for place, column in enumerate(state.columns):
            # Empty: since the last step nobody asked for drafts.
            trunk = children.get((trunk, column[0])) if column and trunk is not None else None
            if trunk is not None:
                node, kept = _follow(children, trunk, column)
                column = [*column[:kept], int(np.argmax(outcome.logits[node]))]
            full = len(column) == size
            if full:
                self._keep(state, tuple(column))
            if (target := place + full - emitted) >= 0:
                moved.setdefault(target, column[full:])
        state.columns = [moved.get(place, []) for place in range(max(moved, default=-1) + 1)]


def _children(tree: DraftTree) -> dict[tuple[int, int], int]:
    """(node, token) -> child."""
    pairs = zip(tree.parents, tree.tokens, strict=True)
    return {pair: node for node, pair in enumerate(pairs)}


def _follow(children: dict[tuple[int, int], int], node: int, column: list[int]) -> tuple[int, int]:
    """The last node of `column` that was verified, and how many of its tokens that makes."""
    for kept, token in enumerate(column[1:], start=1):
        child = children.get((node, token))
        if child is None:
            return node, kept
        node = child
    return node, len(column)


def make(config: Config, context: DraftContext) -> Drafter:
    return LookaheadDrafter(config, context)
