"""A second, smaller checkpoint of the same vocabulary guesses for the target (draft model).

Idea: speculative sampling (arXiv 2211.17192, 2302.01318), batched, with siblings. All sequences go
through one pass per level. A level ranks the draft model's own logits with the target's parameters
and the target's noise at that output position: at temperature 0 that is plain top-k, above it the
noise the target will add is already known (coupling by shared noise, arXiv 2408.07978). The best
child continues the path, the others become leaves. A path ends at the depth limit or where its
reach falls below `confidence_threshold`.

    store     [ committed, K/V known | drafted rows of this step, reserved and not committed ]
               0 .. length-1           length .. : kept by `observe` where the target agreed

The drafter counts for itself what its store holds (`kv.length`). After full acceptance that is two
tokens short of the history, after a prefix hit or preemption any number: the next `propose` feeds
whatever is missing, so there is never a hole.

Cost: one pass of the draft model per level plus the catch-up (the whole prompt at first, in one
step); K and V of every running sequence. Loses when the draft model is not several times cheaper
than the target, and on a full store, where sequences without room get no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np

from foreword.config import positive
from foreword.draft._context import DraftContext, keep_best
from foreword.errors import ConfigError, NonFiniteLogits
from foreword.model.batch import Batch, Segment
from foreword.protocols import Drafter, KVStore, Logits, Model, Sampler
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
        if not 0.0 <= self.confidence_threshold <= 1.0:
            raise ConfigError(
                f"confidence_threshold must be between 0 and 1, got {self.confidence_threshold!r}"
            )


@dataclass(slots=True)
class _Path:
    """One sequence while it is drafted for."""

    sequence: Sequence
    budget: int
    depth: int  # levels wanted
    logits: Logits | None = None  # [columns] after the last token fed
    trie: Trie = field(default_factory=Trie)
    node: int = -1  # end of the path
    reach: float = 1.0
    level: int = 0  # levels done


class ModelDrafter:
    """Owns a draft model and its KV store; `_drafted[id]` are the tokens fed but not committed."""

    name = "model"

    def __init__(
        self, config: Config, context: DraftContext, model: Model, kv: KVStore, sampler: Sampler
    ) -> None:
        self._config = config
        self._context = context
        self._model = model
        self._kv = kv
        self._sampler = sampler
        self._drafted: dict[str, list[int]] = {}

    def begin(self, sequence: Sequence) -> None:
        readable = self._readable(sequence.token_ids)
        self._kv.begin(sequence.id, readable, sequence.request.salt)
        self._drafted[sequence.id] = []

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        paths = [
            _Path(sequence, limit, min(self._context.depth_for(sequence), limit))
            for sequence, limit in zip(sequences, budget, strict=True)
        ]
        active = self._catch_up([path for path in paths if path.depth > 0])
        while active:
            active = [path for path in active if self._branch(path)]
            active = [path for path in active if path.level > 1 or self._reserve(path)]
            self._forward_level(active)
        return [keep_best(path.trie, path.budget) for path in paths]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.sequence.id in self._drafted:
                self._keep_agreed(outcome.sequence)

    def end(self, sequence: Sequence) -> None:
        if self._drafted.pop(sequence.id, None) is not None:
            self._kv.free(sequence.id)

    def _readable(self, token_ids: list[int]) -> list[int]:
        """Ids as the draft model is fed them: id 0 stands for one it has no embedding for."""
        limit = self._model.vocab_size
        if max(token_ids, default=0) < limit:
            return token_ids
        return [token if token < limit else 0 for token in token_ids]

    def _keep_agreed(self, sequence: Sequence) -> None:
        """Commit the drafted rows the target agreed with; one token at least stays to be fed."""
        drafted, self._drafted[sequence.id] = self._drafted[sequence.id], []
        if not drafted:
            return
        held = self._kv.length(sequence.id)
        committed = sequence.token_ids[held:-1]
        kept = 0
        for guess, token in zip(drafted, committed, strict=False):
            if guess != token:
                break
            kept += 1
        content = self._readable(sequence.token_ids[: held + kept])
        self._kv.commit(sequence.id, range(kept), content)

    def _catch_up(self, paths: list[_Path]) -> list[_Path]:
        """Feed every committed token not yet held; returns the paths that got their logits."""
        waiting, ready = paths, []
        for path in paths:
            self._drafted[path.sequence.id] = []
        while waiting:
            fed: list[tuple[_Path, int]] = []  # path, length after this pass
            segments = []
            for path in waiting:
                key, total = path.sequence.id, len(path.sequence.token_ids)
                if self._kv.length(key) == total:  # asked again, nothing new: feed the root anew
                    self._kv.truncate(key, total - 1)
                held = self._kv.length(key)
                rows = min(total - held, self._config.chunk_size)
                if not self._kv.reserve(key, rows):
                    continue  # no room: no drafts for this sequence
                tokens = self._readable(path.sequence.token_ids[held : held + rows])
                last = held + rows == total
                segments.append(Segment.chain(tokens, self._kv.slots(key), logits=last))
                fed.append((path, held + rows))
            self._forward([path for path, end in fed if _complete(path, end)], segments)
            for path, end in fed:
                content = self._readable(path.sequence.token_ids[:end])
                held = self._kv.length(path.sequence.id)
                self._kv.commit(path.sequence.id, range(end - held), content)
            ready += [path for path, end in fed if _complete(path, end)]
            waiting = [path for path, end in fed if not _complete(path, end)]
        return ready

    def _branch(self, path: _Path) -> bool:
        """Add the next level's children to the trie; true if the path goes on from the best."""
        assert path.logits is not None
        sequence = path.sequence
        row = path.logits[: self._context.vocab_size]
        position = sequence.num_output + path.level
        try:
            ranked = self._sampler.rank(
                row,
                sequence.request.params,
                sequence.sampler_state,
                position,
                self._config.num_branches,
            )
        except NonFiniteLogits:
            return False  # the draft model's trouble, not the request's
        if not ranked:
            return False
        children = [path.trie.add(path.node, *child, self.name) for child in ranked]
        path.node = children[0]
        path.reach *= path.trie.scores[path.node]
        path.level += 1
        return path.level < path.depth and path.reach >= self._config.confidence_threshold

    def _reserve(self, path: _Path) -> bool:
        """Room for all levels but the last, whose tokens are never fed."""
        return self._kv.reserve(path.sequence.id, path.depth - 1)

    def _forward_level(self, paths: list[_Path]) -> None:
        """Feed the end of each path: one row each, after the rows of the levels before."""
        segments = []
        for path in paths:
            key, token = path.sequence.id, path.trie.tokens[path.node]
            self._drafted[key].append(token)
            length = self._kv.length(key) + path.level
            segments.append(Segment.chain([token], self._kv.slots(key)[:length]))
        self._forward(paths, segments)

    def _forward(self, wanting: list[_Path], segments: list[Segment]) -> None:
        """One pass; the logit rows belong to `wanting`, in order."""
        if segments:
            rows: np.ndarray = self._model.forward(Batch.of(segments), self._kv)
            for path, row in zip(wanting, rows, strict=True):
                path.logits = row


def _complete(path: _Path, end: int) -> bool:
    return end == len(path.sequence.token_ids)


def make(config: Config, context: DraftContext) -> Drafter:
    if context.model is None or context.kv is None or context.sampler is None:
        raise ConfigError("drafter 'model' needs a draft model; name one with --draft-model")
    return ModelDrafter(config, context, context.model, context.kv, context.sampler)
