"""A second, smaller checkpoint of the same vocabulary guesses for the target (draft model).

Idea: speculative sampling (arXiv 2211.17192, 2302.01318), batched, with siblings. All sequences go
through one pass per level. A level ranks the draft model's own logits with the target's parameters
and the target's noise at that output position: at temperature 0 that is plain top-k, above it the
noise the target will add is already known (coupling by shared noise, arXiv 2408.07978). The best
child continues the path, the others become leaves. A path ends at the depth limit or where its
reach falls below `confidence_threshold`.

A request that accepts by probabilities (`Sequence.draws`) gets one path of draws from the draft
model's own law instead, by coins of this step alone. Their scores are what the request's drafts
were worth so far: a score that looked at the draw would let the tree builder keep some draws more
often than others.

Cost: one pass of the draft model per level plus the catch-up (the whole prompt at first, in one
step); K and V of every running sequence. Loses when the draft model is not several times cheaper
than the target, and on a full store, where sequences without room get no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from zlib import crc32

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
    """num_branches: children per level (the best one continues). confidence_threshold: reach below
    which a path is not continued, [0, 1]. chunk_size: rows of one sequence per catch-up pass."""

    num_branches: int = 3
    confidence_threshold: float = 0.05
    chunk_size: int = 256

    def __post_init__(self) -> None:
        positive(self, "num_branches", "chunk_size")
        share(self, "confidence_threshold")


@dataclass(slots=True)
class _Path:
    """One sequence while it is drafted for."""

    sequence: Sequence
    budget: int
    depth: int  # levels wanted
    logits: Logits  # [columns] after the last token fed
    trie: Trie = field(default_factory=Trie)
    node: int = -1  # end of the path
    reach: float = 1.0
    level: int = 0  # levels done


class ModelDrafter:
    """One path per sequence, all of them one level further in each pass of the draft model."""

    name = "model"
    draws = True  # protocols.DrawingDrafter

    def __init__(
        self, config: Config, context: DraftContext, own: OwnModel, sampler: Sampler
    ) -> None:
        self._config = config
        self._context = context
        self._own = own
        self._sampler = sampler

    def begin(self, sequence: Sequence) -> None:
        self._own.begin(sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        tries = [Trie() for _ in sequences]
        depths = [
            min(self._context.depth_for(sequence), limit)
            for sequence, limit in zip(sequences, budget, strict=True)
        ]
        asked = [row for row, depth in enumerate(depths) if depth > 0]
        rows = self._own.start(
            [Ask(sequences[row], room=depths[row] - 1) for row in asked], self._config.chunk_size
        )
        paths = [
            _Path(sequences[row], budget[row], depths[row], logits[0], tries[row])
            for row, logits in zip(asked, rows, strict=True)
            if logits is not None
        ]
        active = paths
        while active:
            active = [path for path in active if self._branch(path)]
            self._forward_level(active)
        return [keep_best(trie, limit) for trie, limit in zip(tries, budget, strict=True)]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            self._own.keep(outcome.sequence)

    def end(self, sequence: Sequence) -> None:
        self._own.end(sequence)

    def _branch(self, path: _Path) -> bool:
        """Add the next level's children to the trie; true if the path goes on from the best."""
        sequence = path.sequence
        try:
            added = self._draw(path) if sequence.draws else self._rank(path)
        except NonFiniteLogits:
            return False  # the draft model's trouble, not the request's
        if added is None:
            return False
        path.node = added
        path.reach *= path.trie.scores[path.node]
        path.level += 1
        wanted = path.level < path.depth and path.reach >= self._config.confidence_threshold
        return wanted and self._own.room(sequence) > 0

    def _rank(self, path: _Path) -> int | None:
        """Children by the target's own noise; the best one's node."""
        sequence = path.sequence
        ranked = self._sampler.rank(
            path.logits[: self._context.vocab_size],
            sequence.request.params,
            sequence.sampler_state,
            sequence.num_output + path.level,
            self._config.num_branches,
        )
        children = [
            path.trie.add(path.node, *child, self.name, evidence=rank)
            for rank, child in enumerate(ranked)
        ]
        return children[0] if children else None

    def _draw(self, path: _Path) -> int:
        """One child, drawn from the draft model's law by a coin of this step and level."""
        sequence = path.sequence
        state, start = sequence.sampler_state, sequence.num_output
        position = start + path.level
        row = path.logits[: self._context.vocab_size]
        law = self._sampler.law(row, sequence.request.params, state, position)
        token = law.draw(self._sampler.coin(state, position, 0, since=start + 1))
        node = path.trie.add(path.node, token, worth(sequence), self.name)
        path.trie.laws[node] = law
        return node

    def _forward_level(self, paths: list[_Path]) -> None:
        """Feed the end of each path: one row each, after the rows of the levels before."""
        asks = [
            (Ask(path.sequence, [path.trie.tokens[path.node]], [ROOT]), path.level - 2)
            for path in paths
        ]
        for path, rows in zip(paths, self._own.feed(asks), strict=True):
            path.logits = rows[0]


def worth(sequence: Sequence) -> float:
    """The share of this request's draws that were accepted when they were tested, as if 8 of 10 had
    been before; apart from every other request's by a hair, since builders break ties by token."""
    stats = sequence.stats  # a walk that ends with a refusal tests one draw more than it accepts
    rate = (stats.num_accepted + 8) / (stats.num_accepted + stats.num_steps + 10)
    return rate - 1e-6 * crc32(sequence.id.encode()) / 2**32


def make(config: Config, context: DraftContext) -> Drafter:
    if context.model is None or context.kv is None or context.sampler is None:
        raise ConfigError("drafter 'model' needs a draft model; name one with --draft-model")
    own = OwnModel(context.model, context.kv)
    return ModelDrafter(config, context, own, context.sampler)
