"""What the drafters of this folder share: the context each is made with, and two small helpers.

A drafter file declares, at module level:

    needs             frozenset of words `build.py` must provide for: "own_kv", a draft model with
                      its own KV store; "layers", parts of the target itself (`ahead`)
    sources           of a composite only: sources(config) -> names of the drafters it is handed
    acceptance_floor  mean tokens per verify pass, bonus included, that the contract suite holds it
                      to with paths of 4 on a history it should find easy (1.0 = it may never help)
    Config            small frozen dataclass of its own options
    make              make(config, context) -> Drafter

Knows no drafter. A name that starts with an underscore is not a drafter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from foreword.draft._ahead import Ahead
from foreword.draft._bigrams import Source
from foreword.errors import ConfigError
from foreword.protocols import Drafter, KVStore, Model, RowOps, Sampler
from foreword.sample.rows import NumpyRows
from foreword.types import Sequence, SourceClock, Trie


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What `build.py` hands to `make`.

    max_depth: longest draft path (`num_speculative_tokens`). vocab_size: ids the target can emit;
    no drafter proposes an id beyond. row_ops: top-k of the target's logit rows. learning: whether
    anything may be kept from one request for the next. sources: what a composite asked for, made
    with default options, by name. clock: where a composite measures them. sampler: the target's.
    bigrams: what it says after single tokens, on demand. model, kv: for drafters that need
    "own_kv"; ahead: for those that need "layers".
    """

    max_depth: int
    vocab_size: int
    model: Model | None = None
    kv: KVStore | None = None
    sampler: Sampler | None = None
    row_ops: RowOps = field(default_factory=NumpyRows)
    learning: bool = True
    sources: Mapping[str, Drafter] = field(default_factory=dict)
    clock: SourceClock = field(default_factory=SourceClock)
    bigrams: Source | None = None
    ahead: Ahead | None = None

    def __post_init__(self) -> None:
        for name in ("max_depth", "vocab_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1, got {getattr(self, name)!r}")

    def depth_for(self, sequence: Sequence) -> int:
        """Longest path worth drafting: the last token that may be emitted needs no draft."""
        return max(0, min(self.max_depth, sequence.remaining - 1))


def keep_best(trie: Trie, budget: int) -> Trie:
    """The `budget` nodes of highest reach, in their old order; parents outrank their children."""
    if len(trie) <= budget:
        return trie
    kept = sorted(by_reach(trie)[:budget])
    result, moved = Trie(), {-1: -1}
    for node in kept:
        parent = moved[trie.parents[node]]
        moved[node] = result.add(
            parent, trie.tokens[node], trie.scores[node], trie.sources[node], trie.evidence[node]
        )
    return result


def by_reach(trie: Trie) -> list[int]:
    """Nodes by falling reach, equal ones in their order: parents before their children."""
    reach: list[float] = []
    for parent, score in zip(trie.parents, trie.scores, strict=True):
        reach.append(score * (reach[parent] if parent >= 0 else 1.0))
    return sorted(range(len(trie)), key=lambda node: (-reach[node], node))


def graft(trie: Trie, other: Trie, budget: int) -> None:
    """Add the nodes of `other` to `trie`, the likeliest first, until it holds `budget`; a node that
    both hold takes no room and keeps the higher score."""
    moved = {-1: -1}
    for node in by_reach(other):
        parent = moved.get(other.parents[node])
        if parent is None:
            continue  # its parent found no room
        token = other.tokens[node]
        if len(trie) >= budget and trie.child(parent, token) is None:
            continue
        moved[node] = trie.add(
            parent, token, other.scores[node], other.sources[node], other.evidence[node]
        )
