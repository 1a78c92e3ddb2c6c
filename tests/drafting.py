"""Stand-ins for testing drafters alone: a model that reads its own tape, and a tiny loop.

`TapeModel` has no weights. Its "keys and values" are the token and the position it was fed, kept in
the store's slots; the logits of a row are a hash of what it reads back through those slots. A hole,
a stale row, a shifted position or a row of a neighbour gives other logits, or an assertion.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Set
from collections.abc import Sequence as SequenceOf

import numpy as np

from foreword.draft._ahead import Line
from foreword.kv import paged
from foreword.kv.paged import PagedStore
from foreword.model.batch import Batch, Segment
from foreword.protocols import Drafter, KVStore, TreeBuilder
from foreword.sample import sampler
from foreword.types import (
    Budget,
    DraftTree,
    Outcome,
    Request,
    SamplingParams,
    Sequence,
    Trie,
    Verdict,
)

VOCAB = 40


class Tape:
    """A KV pool whose slots hold the token and the position they were written with."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.tokens = np.full(num_slots, -1, dtype=np.int64)
        self.positions = np.full(num_slots, -1, dtype=np.int64)

    def move(self, source: np.ndarray, destination: np.ndarray) -> None:
        self.tokens[destination] = self.tokens[source]
        self.positions[destination] = self.positions[source]

    def check(self) -> None:
        assert self.tokens[0] == self.positions[0] == -1


def tape_store(num_tokens: int = 4000, prefix_caching: bool = True) -> PagedStore:
    """The real store over a tape; pages of 4, so that few tokens make many pages."""
    return paged.make(Tape(num_tokens + 4), block_size=4, enable_prefix_caching=prefix_caching)


def held_ids(store: PagedStore, sequence: Sequence) -> list[int]:
    """The tokens whose K/V the store holds as committed."""
    slots = store.slots(sequence.id)[: store.length(sequence.id)]
    return store.pool.tokens[slots].tolist()


class TapeModel:
    """Logits by hash of the path read back. `drift`: share of paths on which it disagrees with the
    model of drift 0; `vocab_size`: columns."""

    def __init__(self, vocab_size: int = VOCAB, drift: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.drift = drift
        self.num_rows: list[int] = []  # rows of each pass

    def forward(self, batch: Batch, kv: KVStore) -> np.ndarray:
        self.num_rows.append(batch.num_rows)
        assert len(set(batch.slots.tolist())) == batch.num_rows
        assert batch.slots.min() > 0
        assert 0 <= batch.token_ids.min() <= batch.token_ids.max() < self.vocab_size
        kv.pool.tokens[batch.slots] = batch.token_ids
        kv.pool.positions[batch.slots] = batch.positions
        rows = [
            self.logits(self._read(segment, row, kv.pool))
            for segment in batch.segments
            for row in segment.logit_rows
        ]
        return np.stack(rows) if rows else np.zeros((0, self.vocab_size), dtype=np.float32)

    def _read(self, segment: Segment, row: int, tape: Tape) -> list[int]:
        own = []
        while row >= 0:
            own.append(segment.cached + row)
            row = segment.parents[row]
        slots = segment.slots[[*range(segment.cached), *reversed(own)]]
        assert tape.positions[slots].tolist() == list(range(len(slots)))
        return tape.tokens[slots].tolist()

    def logits(self, path: SequenceOf[int]) -> np.ndarray:
        number = hash_of("logits", *path)
        if self.drift and hash_of("drift", *path) < self.drift * 2**64:
            number = hash_of("other", *path)
        random = np.random.default_rng(number)
        return (8 * random.standard_normal(200)[: self.vocab_size]).astype(np.float32)


class TapeAhead:
    """Stands in for draft/_ahead.py without a store: the target holds all but the last token, and
    parts of it are as good as the whole. Tokens must follow what is held or was read just now."""

    num_units = 12

    def __init__(self, model: TapeModel) -> None:
        self.model = model
        self._read: dict[str, list[int]] = {}  # the history with the drafted tokens read so far

    def held(self, sequence: Sequence) -> int:
        return len(sequence.token_ids) - 1

    def room(self, sequence: Sequence) -> int:
        return 99

    def read(self, lines: SequenceOf[Line], skip: Set[int]) -> np.ndarray:
        rows = []
        if any(line.start == self.held(line.sequence) for line in lines):
            self._read = {}
        for line in lines:
            key, held = line.sequence.id, self.held(line.sequence)
            known = self._read.get(key, []) if line.start > held else line.sequence.token_ids
            assert line.start <= len(known), "a hole"
            path = [*known[: line.start], *line.tokens]
            if line.start >= held:
                self._read[key] = path
            first = len(path) - line.wanted + 1
            rows += [self.model.logits(path[:end]) for end in range(first, len(path) + 1)]
        return np.stack(rows)


def hash_of(*parts: object) -> int:
    text = ",".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def new_sequence(
    name: str,
    prompt: SequenceOf[int],
    max_tokens: int = 1000,
    temperature: float = 0.0,
    output: SequenceOf[int] = (),
) -> Sequence:
    """A sequence that has emitted `output`."""
    params = SamplingParams(temperature, 1.0, 0, 0.0, max_tokens=max_tokens)
    request = Request(name, tuple(prompt), params, seed=hash_of(name), max_tokens=max_tokens)
    state = sampler.make().begin(request)
    return Sequence(request, [*prompt, *output], sampler_state=state)


def copy_of(sequence: Sequence) -> Sequence:
    """A fresh sequence with the same history."""
    state = sequence.sampler_state
    return Sequence(sequence.request, list(sequence.token_ids), sampler_state=state)


Next = Callable[[Sequence, SequenceOf[int]], int]


def by_model(model: TapeModel) -> Next:
    """The target's next token after `emitted`: a model and the sampler."""
    chooser = sampler.make()

    def following(sequence: Sequence, emitted: SequenceOf[int]) -> int:
        row = model.logits([*sequence.request.prompt_ids, *emitted])[:VOCAB]
        params, state = sequence.request.params, sequence.sampler_state
        return chooser.choose(row, params, state, len(emitted)).token_id

    return following


def by_period(period: int) -> Next:
    """A target that repeats its prompt's last `period` tokens (or all, if fewer) for ever."""

    def following(sequence: Sequence, emitted: SequenceOf[int]) -> int:
        history = [*sequence.request.prompt_ids, *emitted]
        return history[-min(period, sequence.num_prompt)]

    return following


def walk(sequence: Sequence, tree: DraftTree, following: Next) -> Verdict:
    """Sample-and-match; stops at max_tokens."""
    node: int | None = 0
    emitted = list(sequence.output_ids)
    tokens: list[int] = []
    path: list[int] = []
    while True:
        tokens.append(following(sequence, emitted + tokens))
        finished = len(emitted) + len(tokens) == sequence.request.max_tokens
        child = tree.child(node, tokens[-1]) if node is not None else None
        if finished or child is None:
            accepted = len(path) + (child is not None)
            return Verdict(tuple(tokens), tuple(path), accepted, finished)
        path.append(child)
        node = child


def step(
    drafter: Drafter,
    builder: TreeBuilder,
    sequences: SequenceOf[Sequence],
    following: Next,
    per_sequence: int,
    verified: int | None = None,
) -> list[Outcome]:
    """One turn of the loop; `verified`: draft nodes of a tree, where fewer than were proposed."""
    tries = drafter.propose(sequences, [per_sequence] * len(sequences))
    limit = per_sequence if verified is None else verified
    budget = Budget(limit * len(sequences), (limit,) * len(sequences))
    trees = builder.build([sequence.token_ids[-1] for sequence in sequences], tries, budget)
    outcomes = []
    for sequence, tree in zip(sequences, trees, strict=True):
        logits = rows_of(sequence, tree, following)
        verdict = walk(sequence, tree, following)
        sequence.token_ids.extend(verdict.tokens)
        sequence.stats.add(tree.num_drafted, verdict.num_accepted, len(verdict.tokens))
        outcomes.append(Outcome(sequence, tree, verdict, logits))
    drafter.observe(outcomes)
    return outcomes


def rows_of(sequence: Sequence, tree: DraftTree, following: Next) -> np.ndarray:
    """float32 [nodes, VOCAB]: 9 at the token that follows each node, 0 elsewhere."""
    rows = np.zeros((len(tree), VOCAB), dtype=np.float32)
    paths: list[list[int]] = [list(sequence.output_ids)]
    for node, parent in enumerate(tree.parents):
        if node:
            paths.append([*paths[parent], tree.tokens[node]])
        rows[node, following(sequence, paths[node])] = 9.0
    return rows


def depths_of(trie: Trie) -> list[int]:
    depths: list[int] = []
    for parent in trie.parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return depths


def reaches_of(trie: Trie) -> list[float]:
    reaches: list[float] = []
    for parent, score in zip(trie.parents, trie.scores, strict=True):
        reaches.append(score * (reaches[parent] if parent >= 0 else 1.0))
    return reaches


def plain(trie: Trie) -> tuple[list[int], list[int], list[float], list[str]]:
    return trie.tokens, trie.parents, trie.scores, trie.sources


def assert_sound(trie: Trie, budget: int, max_depth: int, vocab_size: int) -> None:
    assert len(trie) <= budget
    assert all(parent < node for node, parent in enumerate(trie.parents))
    assert all(0 <= token < vocab_size for token in trie.tokens)
    assert all(0.0 < score <= 1.0 and math.isfinite(score) for score in trie.scores)
    assert max(depths_of(trie), default=0) <= max_depth
    pairs = list(zip(trie.parents, trie.tokens, strict=True))
    assert len(set(pairs)) == len(pairs), "equal siblings"
