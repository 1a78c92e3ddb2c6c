"""What the target would have said after a context before, it may say after it again.

Idea: Token Recycling (arXiv 2408.08696). Verifying a tree computes the target's logits after every
node, rejected ones too, and plain decoding throws them away. Here the best `width` ids of each are
kept by context: the last three tokens, or two, or one (the paper keys by one). A token never met
gets the target's own bigrams (see _bigrams.py). With `prompt_rows` the last rows of a prompt are
read as well (the drafting half of AASD, arXiv 2505.13204), which makes the target compute logits
there that nothing else needs.

Score: the softmax over the ids kept, lowered by how little the context says (`TRUST`). At a
temperature the target's noise for that position is known: ids are ranked by what it makes of the
kept logits (`shared_noise`). Evidence: 16 x tokens of the context + rank, 0 .. 63.

Cost: per verified node its top-k and about 3 microseconds, per proposed node 4. Memory: about 1 kB
for each of `capacity` contexts of each of `salts`. Frozen learning: the bigrams alone. Loses
on nothing much: with wide trees it guesses right more often than any other source that is not a
model, though never far ahead.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from foreword import compiled
from foreword.config import flag, positive, whole
from foreword.draft._bigrams import Bigrams, contiguous, empty
from foreword.draft._compiled import trie_of
from foreword.draft._context import DraftContext
from foreword.draft._noise import under_noise
from foreword.draft._table import LONGEST, ContextTable, Keys, follow, keys_of
from foreword.errors import ConfigError
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0

# The chance that an id is accepted is about its share times this, by tokens of the context that is
# known (0: bigrams). Outputs of SmolLM2-135M-Instruct, 60 Spec-Bench questions and 8 edits.
TRUST = (0.35, 0.6, 0.75, 0.85)
OTHERS = 0.1  # share of the ids that are not kept
LOWEST = 1e-4  # scores below are not looked for
BASE = 2**21  # contexts are numbers to this base; histories may hold any id below
MOST = 16  # ids of a row at most: evidence counts in sixteens

# (-reach, order of discovery, parent, level, keys of the parent, its reach, ids, scores, evidence)
Entry = tuple[float, int, int, int, Keys, float, list[int], list[float], int]

Highest = tuple[np.ndarray, np.ndarray]  # ids and logits of rows, best first


@dataclass(frozen=True, slots=True)
class Config:
    """width: ids kept per context. capacity: contexts kept per salt; salts: salts remembered.
    cold_start: begin with the target's bigrams, made on first use in at most cold_start_seconds.
    prompt_rows: last rows of a prompt whose logits are read, 0 = none. shared_noise: rank by the
    target's noise at temperature > 0."""

    width: int = 8
    capacity: int = 8192
    salts: int = 8
    cold_start: bool = True
    cold_start_seconds: float = 1.0
    prompt_rows: int = 0
    shared_noise: bool = True

    def __post_init__(self) -> None:
        positive(self, "capacity", "salts")
        whole(self, "width", 1, MOST)
        whole(self, "prompt_rows", 0, 2**31)
        flag(self, "cold_start")
        flag(self, "shared_noise")
        seconds: object = self.cold_start_seconds
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        if not number or not 0.0 <= self.cold_start_seconds < math.inf:
            raise ConfigError(
                f"cold_start_seconds must be a number >= 0, got {self.cold_start_seconds!r}"
            )


class RecycleDrafter:
    """One table per salt over the bigrams all share."""

    name = "recycle"

    def __init__(self, config: Config, context: DraftContext, bigrams: Bigrams) -> None:
        self._config = config
        self._context = context
        self._bigrams = bigrams = contiguous(bigrams)
        self._width = min(config.width, context.vocab_size)
        self._cold = np.ascontiguousarray(shares_of(bigrams.logits))
        self._loops = compiled.loops()
        self._cold_ids, self._cold_shares = bigrams.ids.ctypes.data, self._cold.ctypes.data
        # by salt, the one used last is last: a ContextTable, or its like of the extension
        self._tables: dict[str, Any] = {}
        self.prompt_rows = config.prompt_rows if context.learning else 0

    def begin(self, sequence: Sequence) -> None:
        pass

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [
            self._draft(sequence, limit) for sequence, limit in zip(sequences, budget, strict=True)
        ]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        if not self._context.learning:
            return
        highest = self._highest([outcome.logits for outcome in outcomes])
        for outcome, rows in zip(outcomes, highest, strict=True):
            tree, ids = outcome.tree, outcome.sequence.token_ids
            before = len(ids) - len(outcome.verdict.tokens)
            last = ids[max(0, before - LONGEST) : before]
            if rows is not None:
                self._learn(outcome.sequence.request.scope, last, tree.tokens, tree.parents, rows)

    def read_prompt(self, sequence: Sequence, start: int, logits: np.ndarray) -> None:
        """The target's raw rows float32 [rows, vocab] after prompt tokens `start` and on."""
        ids, end = sequence.token_ids, start + len(logits)
        last = ids[max(0, start + 1 - LONGEST) : start + 1]
        chain = range(-1, len(logits) - 1)
        (rows,) = self._highest([logits])
        if rows is not None:
            self._learn(sequence.request.scope, last, ids[start:end], chain, rows)

    def end(self, sequence: Sequence) -> None:
        pass

    def _highest(self, parts: list[np.ndarray]) -> list[Highest | None]:
        """Of the rows of each part the best ids int32 [rows, width] and their logits; None where a
        row holds NaN: its request ends with an error, there is nothing to learn."""
        whole = joined(parts)
        if whole is not None:
            try:
                ids, values = self._context.row_ops.top_k(whole, self._width)
            except ValueError:
                pass  # one by one, then
            else:
                ends = np.cumsum([len(part) for part in parts])[:-1]
                return list(zip(np.split(ids, ends), np.split(values, ends), strict=True))
        found: list[Highest | None] = []
        for part in parts:
            try:
                found.append(self._context.row_ops.top_k(part, self._width))
            except ValueError:
                found.append(None)
        return found

    def _learn(
        self,
        salt: str,
        last: list[int],
        tokens: SequenceOf[int],
        parents: SequenceOf[int],
        rows: Highest,
    ) -> None:
        """Rows after each node of a tree, whose root is the end of `last`."""
        table = self._tables.pop(salt, None)
        if table is None:
            make = self._loops.ContextTable if self._loops else ContextTable
            table = make(self._config.capacity)
        self._tables[salt] = table
        if len(self._tables) > self._config.salts:
            del self._tables[next(iter(self._tables))]
        ids, values = rows
        if self._loops:
            places = ids.ctypes.data, values.ctypes.data
            table.learn_tree(last, tokens, parents, self._width, *places)
            return
        contexts = [keys_of(last, BASE)]
        for token, parent in zip(tokens[1:], parents[1:], strict=True):
            contexts.append(follow(contexts[parent], token, BASE))
        table.learn(contexts, zip(ids.tolist(), shares_of(values).tolist(), strict=True))

    def _draft(self, sequence: Sequence, budget: int) -> Trie:
        """The `budget` nodes of highest reach, found best first."""
        depth = self._context.depth_for(sequence)
        if budget < 1 or depth < 1:
            return Trie()
        table = self._tables.get(sequence.request.scope)
        if not self._loops:
            return self._search(sequence, table, budget, depth)
        temperature, noise = sequence.request.params.temperature or 0.0, None
        if temperature and self._config.shared_noise:
            noise = partial(self._noise, sequence)
        last, cold = sequence.token_ids[-LONGEST:], (self._cold_ids, self._cold_shares)
        known, width = self._bigrams.ids.shape
        found = self._loops.draft_recycle(
            table, last, budget, depth, *cold, known, width, temperature, noise
        )
        return trie_of(found, self.name)

    def _search(
        self, sequence: Sequence, table: ContextTable | None, budget: int, depth: int
    ) -> Trie:
        """recycle_draft of native/recycle.cpp."""
        trie, keys = Trie(), keys_of(sequence.token_ids, BASE)
        token, order, node, level, reach = sequence.token_ids[-1], 0, -1, 0, 1.0
        frontier: list[Entry] = []
        while True:
            if level < depth:
                ids, scores, evidence = self._children(sequence, table, keys, token, level)
                if ids:
                    order += 1
                    entry = (-reach * scores[0], order, node, level, keys, reach, ids, scores)
                    heapq.heappush(frontier, (*entry, evidence))
            if not frontier or len(trie) == budget:
                return trie
            negative, _, parent, level, above, outer, ids, scores, evidence = frontier[0]
            rank = evidence % 16
            token = ids[rank]
            node = trie.add(parent, token, scores[rank], self.name, evidence)
            if rank + 1 < len(ids) and scores[rank + 1] >= LOWEST:
                order += 1
                entry = (-outer * scores[rank + 1], order, parent, level, above, outer, ids, scores)
                heapq.heapreplace(frontier, (*entry, evidence + 1))
            else:
                heapq.heappop(frontier)
            reach, level, keys = -negative, level + 1, follow(above, token, BASE)

    def _children(
        self, sequence: Sequence, table: ContextTable | None, keys: Keys, token: int, level: int
    ) -> tuple[list[int], list[float], int]:
        """Ids that may follow a history with `keys` and `token` last, best first, their scores, and
        the evidence of the first; `level` drafted tokens lie between it and the output."""
        found = None if table is None else table.find(keys)
        if found is None:
            if token >= self._bigrams.known:
                return [], [], 0
            found = 0, (self._bigrams.ids[token].tolist(), self._cold[token].tolist())
        size, (ids, shares) = found
        temperature = sequence.request.params.temperature
        if temperature:
            top = max(shares, default=0.0)
            if temperature != 1.0 and top > 0.0:  # of the highest, or they would all underflow
                powers = [(share / top) ** (1.0 / temperature) for share in shares]
                scale = 1.0 / sum(powers)
                shares = [scale * power for power in powers]
            if self._config.shared_noise and sequence.request.params.sampler == "gumbel":
                ids, shares = self._ranked(sequence, ids, shares, level)
        trust = TRUST[size]
        return ids, [trust * share for share in shares], 16 * size

    def _ranked(
        self, sequence: Sequence, ids: list[int], shares: list[float], level: int
    ) -> tuple[list[int], list[float]]:
        """Ids and their chances, the likeliest choice of the target under its own noise first."""
        noise = self._noise(sequence, level, ids)
        chances = under_noise([share * (1.0 - OTHERS) for share in shares], noise, OTHERS)
        order = sorted(range(len(ids)), key=chances.__getitem__, reverse=True)
        return [ids[place] for place in order], [chances[place] for place in order]

    def _noise(self, sequence: Sequence, level: int, ids: list[int]) -> list[float]:
        position = sequence.num_output + level
        return self._context.row_ops.gumbel(sequence.request.seed, position, ids)


def joined(parts: list[np.ndarray]) -> np.ndarray | None:
    """The rows of all parts as one array, if they follow one another in one: a call for each would
    take longer than all of them together."""
    if len(parts) < 2 or parts[0].base is None:
        return None
    first = parts[0]
    rows, place = 0, first.ctypes.data
    for part in parts:
        same = part.base is first.base and part.shape[1:] == first.shape[1:]
        if not same or not part.flags.c_contiguous or part.ctypes.data != place:
            return None
        rows, place = rows + len(part), place + part.nbytes
    return np.lib.stride_tricks.as_strided(first, (rows, *first.shape[1:]), writeable=False)


def shares_of(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Softmax of each row, whose first value is the highest; all of it to an only unmasked id."""
    with np.errstate(invalid="ignore", under="ignore"):
        terms = np.exp(logits - logits[:, :1])
        shares: npt.NDArray[np.float32] = terms / terms.sum(axis=1, keepdims=True)
    return np.nan_to_num(shares)


def make(config: Config, context: DraftContext) -> Drafter:
    bigrams = empty()
    if config.cold_start and context.bigrams is not None:
        bigrams = context.bigrams.load(config.cold_start_seconds)
    return RecycleDrafter(config, context, bigrams)
