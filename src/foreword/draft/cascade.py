"""A cheap source inside the draft model: many guesses checked in a pass, so fewer passes.

Idea: staged speculation (arXiv 2308.04623) and the vertical cascade of CS drafting (arXiv
2312.11462). The draft model reads its tokens one pass at a time as the target does, so it can be
sped up in the same way: `source` guesses what follows, one pass of the draft model reads all of its
guesses, and the path goes on through those that the draft model would have chosen itself. Where it
chooses something else, the next pass reads that token and what the source's guesses hold after the
same token further on, if anything. What the target gets is what `model` would have given it, path
and siblings, at fewer passes; only the draft model's own choice counts, never the guess.

    guesses of the source   a - b - c - d     first pass: root, a, b, c, d
    the draft model says    a - b - x         a, b from that pass; second pass: x, ...

At temperature > 0 the draft model chooses with the target's noise (see `model`). Evidence: 1 for a
node that the source had guessed as well, else 0. Cost: a pass of the draft model for each of its
disagreements with the source, and one. Loses where `model` loses; equals it where the source is
always wrong.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from foreword.config import positive, share
from foreword.draft._context import DraftContext, keep_best
from foreword.draft._own_model import ROOT, Ask, OwnModel
from foreword.errors import ConfigError, NonFiniteLogits
from foreword.protocols import Drafter, Logits, Sampler
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset({"own_kv"})
acceptance_floor = 4.0


@dataclass(frozen=True, slots=True)
class Config:
    """source: the drafter whose guesses are checked. num_guesses: of one sequence in the first
    pass. resume: guesses read after a disagreement, where the source knows the token.
    num_branches, confidence_threshold, chunk_size: as for `model`."""

    source: str = "ngram"
    num_guesses: int = 8
    resume: int = 3
    num_branches: int = 3
    confidence_threshold: float = 0.05
    chunk_size: int = 256

    def __post_init__(self) -> None:
        positive(self, "num_guesses", "resume", "num_branches", "chunk_size")
        if not isinstance(self.source, str):
            raise ConfigError(f"source must be the name of a drafter, got {self.source!r}")
        share(self, "confidence_threshold")


def sources(config: Config) -> tuple[str, ...]:
    return (config.source,)


@dataclass(slots=True)
class _Path:
    """One sequence while it is drafted for."""

    sequence: Sequence
    depth: int  # levels wanted
    guesses: Trie  # the source's
    trie: Trie
    logits: dict[int, Logits]  # row of the draft model (ROOT: the history's last) -> [columns]
    rows: dict[tuple[int, int], int]  # (row, token) -> the row that read it there
    row: int = ROOT  # end of the path among the rows,
    node: int = -1  # and in the trie
    guess: int | None = -1  # and in the guesses, while it agrees with them
    reach: float = 1.0
    level: int = 0  # levels done
    wanted: list[int] = field(default_factory=list)  # tokens the next pass is to read, in a line


class CascadeDrafter:
    """All sequences go on together: a pass reads for each what it needs next."""

    name = "cascade"

    def __init__(
        self,
        config: Config,
        context: DraftContext,
        source: Drafter,
        own: OwnModel,
        sampler: Sampler,
    ) -> None:
        self._config = config
        self._context = context
        self._source = source
        self._own = own
        self._sampler = sampler

    def begin(self, sequence: Sequence) -> None:
        self._source.begin(sequence)
        self._own.begin(sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        tries = [Trie() for _ in sequences]
        depths = [
            min(self._context.depth_for(sequence), limit)
            for sequence, limit in zip(sequences, budget, strict=True)
        ]
        asked = [row for row, depth in enumerate(depths) if depth > 0]
        active = self._first_pass(
            [sequences[row] for row in asked],
            [depths[row] for row in asked],
            [tries[row] for row in asked],
        )
        while active:
            active = [path for path in active if self._walk(path)]
            self._next_pass(active)
        return [keep_best(trie, limit) for trie, limit in zip(tries, budget, strict=True)]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        with self._context.clock.measure(self._source.name, calls=0):
            self._source.observe(outcomes)
        for outcome in outcomes:
            self._own.keep(outcome.sequence)

    def end(self, sequence: Sequence) -> None:
        self._source.end(sequence)
        self._own.end(sequence)

    def _first_pass(
        self, sequences: list[Sequence], depths: list[int], tries: list[Trie]
    ) -> list[_Path]:
        """Read what is missing of each history together with the source's guesses."""
        with self._context.clock.measure(self._source.name):
            given = self._source.propose(sequences, [self._config.num_guesses] * len(sequences))
        asks = [
            Ask(sequence, guesses.tokens, guesses.parents, room=2 * depth)
            for sequence, guesses, depth in zip(sequences, given, depths, strict=True)
        ]
        paths = []
        answers = self._own.start(asks, self._config.chunk_size)
        for ask, guesses, depth, trie, rows in zip(
            asks, given, depths, tries, answers, strict=True
        ):
            if rows is None:
                continue
            logits = dict(enumerate(rows, start=ROOT))
            read = zip(guesses.parents, guesses.tokens, strict=True)
            known = {pair: row for row, pair in enumerate(read) if row in logits}
            paths.append(_Path(ask.sequence, depth, guesses, trie, logits, known))
        return paths

    def _walk(self, path: _Path) -> bool:
        """Go on as far as rows are known; true if a pass is needed to go further."""
        while self._branch(path):
            token = path.trie.tokens[path.node]
            row = path.rows.get((path.row, token))
            if row is None:
                path.wanted = self._line(path, token)
                return self._own.room(path.sequence) >= len(path.wanted)
            path.row = row
        return False

    def _branch(self, path: _Path) -> bool:
        """Add the draft model's children at the end of the path; true if it goes on from the
        best."""
        sequence = path.sequence
        try:
            ranked = self._sampler.rank(
                path.logits[path.row][: self._context.vocab_size],
                sequence.request.params,
                sequence.sampler_state,
                sequence.num_output + path.level,
                self._config.num_branches,
            )
        except NonFiniteLogits:
            return False  # the draft model's trouble, not the request's
        if not ranked:
            return False
        children = []
        for token, score in ranked:
            guessed = path.guess is not None and path.guesses.child(path.guess, token) is not None
            children.append(path.trie.add(path.node, token, score, self.name, int(guessed)))
        path.node = children[0]
        if path.guess is not None:
            path.guess = path.guesses.child(path.guess, ranked[0][0])
        path.reach *= path.trie.scores[path.node]
        path.level += 1
        return path.level < path.depth and path.reach >= self._config.confidence_threshold

    def _line(self, path: _Path, token: int) -> list[int]:
        """The token to read next, and what the source guessed after it elsewhere."""
        line, room = [token], self._own.room(path.sequence)
        most = 1 + min(self._config.resume, path.depth - path.level - 1, room - 1)
        if most > 1 and token in path.guesses.tokens:
            path.guess = path.guesses.tokens.index(token)
            node: int | None = path.guess
            while node is not None and len(line) < most:
                node = _best_child(path.guesses, node)
                if node is not None:
                    line.append(path.guesses.tokens[node])
        return line

    def _next_pass(self, paths: list[_Path]) -> None:
        asks = [
            (Ask(path.sequence, path.wanted, range(-1, len(path.wanted) - 1)), path.row)
            for path in paths
        ]
        for path, rows in zip(paths, self._own.feed(asks), strict=True):
            row = path.row
            first = len(path.logits) - 1  # ROOT is one of them
            for number, (token, line) in enumerate(zip(path.wanted, rows, strict=True), first):
                path.rows[row, token] = number
                path.logits[number] = line
                row = number
            path.row = first


def _best_child(trie: Trie, parent: int) -> int | None:
    children = [node for node, above in enumerate(trie.parents) if above == parent]
    return max(children, key=lambda node: (trie.scores[node], -node), default=None)


def make(config: Config, context: DraftContext) -> Drafter:
    if context.model is None or context.kv is None or context.sampler is None:
        raise ConfigError("drafter 'cascade' needs a draft model; name one with --draft-model")
    if config.source not in context.sources:
        raise ConfigError(
            f"drafter 'cascade' was not given its source {config.source!r}; name one that needs no "
            "draft model"
        )
    own = OwnModel(context.model, context.kv)
    return CascadeDrafter(config, context, context.sources[config.source], own, context.sampler)
