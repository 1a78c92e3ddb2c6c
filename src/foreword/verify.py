"""Pack every row of a step into one target pass: certain tokens and draft nodes alike.

A sequence brings a chain of certain tokens (a prefill chunk, or just its root) and, if the chain
reaches its last token, a tree hanging on it. Node i of the tree is row `certain - 1 + i`: node 0,
the root, is the last certain row. Logits are wanted at every node, and at certain rows that someone
wants to read. Knows no drafter, no sampler.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from foreword.model.batch import Batch, Segment
from foreword.protocols import KVStore, Model
from foreword.types import DraftTree


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a pass; `tree` is None while its prompt is not finished. `read`:
    certain rows, the root not among them, whose logits are wanted as well."""

    sequence_id: str
    certain: tuple[int, ...]  # tokens at positions cached, cached + 1, ...; the root last
    tree: DraftTree | None
    read: range = range(0)
    adapter: str | None = None  # that its rows run under

    @property
    def num_rows(self) -> int:
        return len(self.certain) + (self.tree.num_drafted if self.tree is not None else 0)

    def kept_rows(self, path: SequenceOf[int]) -> list[int]:
        """Reserved rows to commit: the certain ones, then the accepted nodes."""
        certain = len(self.certain)
        return [*range(certain), *(certain - 1 + node for node in path)]


def verify(model: Model, kv: KVStore, works: SequenceOf[Work]) -> list[np.ndarray | None]:
    """One pass. Per work: float32 logits [read + nodes, vocab], of the certain rows to be read and
    then of its tree's nodes; None where there are neither."""
    batch = Batch.of([segment(work, kv) for work in works])
    logits = model.forward(batch, kv)
    rows: list[np.ndarray | None] = []
    start = 0
    for work in works:
        wanted = len(work.read) + (len(work.tree) if work.tree is not None else 0)
        rows.append(logits[start : start + wanted] if wanted else None)
        start += wanted
    assert start == len(logits), (start, len(logits))
    return rows


def segment(work: Work, kv: KVStore) -> Segment:
    """The rows of one sequence, in the order `kept_rows` counts them."""
    certain = len(work.certain)
    tokens, parents = work.certain, tuple(range(-1, certain - 1))
    wanted = tuple(work.read)
    if work.tree is not None:
        tokens = (*tokens, *work.tree.tokens[1:])
        parents = (*parents, *(certain - 1 + parent for parent in work.tree.parents[1:]))
        wanted += tuple(range(certain - 1, len(tokens)))
    cached = kv.length(work.sequence_id)
    slots = kv.slots(work.sequence_id)[: cached + len(tokens)]
    assert len(slots) == cached + len(tokens), (len(slots), cached, len(tokens))
    return Segment(tokens, parents, cached, slots, wanted, work.adapter)
