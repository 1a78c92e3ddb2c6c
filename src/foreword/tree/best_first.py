"""Spend one node budget over the whole batch: always on the candidate most likely to be reached.

Reach is the product of conditional scores from the root (OPT-Tree, arXiv 2406.17276, there for one
sequence). A child never outranks its parent, so taking candidates in order of reach gives, for any
budget, the parent-closed set with the largest expected number of accepted tokens; with a limit per
sequence too, since a full sequence only drops out. One heap holds the frontier of all sequences:
O(log) per node, microseconds per step. It is as good as the scores: a drafter that overrates
itself takes rows from the others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf

from foreword.protocols import TreeBuilder
from foreword.types import Budget, DraftTree, Trie

Candidate = tuple[float, int, int, int, int, int]  # (-reach, depth, token, root, row, trie node)


class BestFirstBuilder:
    """Nodes of a tree are in the order they were taken, so a smaller budget gives a prefix.

    Equal reach: the shallower node, then the smaller token, then the smaller root. Only when all
    of these are equal does the place in the batch decide: the earlier row.
    """

    name = "best_first"

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        growing = [
            _Growing(root, trie, limit)
            for root, trie, limit in zip(roots, tries, budget.per_sequence, strict=True)
        ]
        frontier: list[Candidate] = []
        for row, tree in enumerate(growing):
            frontier += tree.candidates(-1, 1.0, 1, row)
        heapq.heapify(frontier)
        left = budget.total
        while frontier and left > 0:
            negative, depth, _, _, row, node = heapq.heappop(frontier)
            tree = growing[row]
            if tree.full:
                continue
            tree.take(node)
            left -= 1
            for candidate in tree.candidates(node, -negative, depth + 1, row):
                heapq.heappush(frontier, candidate)
        return [tree.finish() for tree in growing]


class _Growing:
    """One sequence's tree under construction."""

    def __init__(self, root: int, trie: Trie, limit: int) -> None:
        self._root, self._trie, self._limit = root, trie, limit
        self._taken: dict[int, int] = {-1: 0}  # node of the trie -> node of the tree
        self._tokens, self._parents, self._sources = [root], [-1], [""]
        self._children: dict[int, list[int]] = {}
        for node, parent in enumerate(trie.parents):
            self._children.setdefault(parent, []).append(node)

    @property
    def full(self) -> bool:
        return len(self._tokens) > self._limit

    def candidates(self, parent: int, reach: float, depth: int, row: int) -> list[Candidate]:
        """The children of `parent`, which is reached with `reach`; `depth` and `row` are theirs."""
        trie = self._trie
        return [
            (-reach * trie.scores[node], depth, trie.tokens[node], self._root, row, node)
            for node in self._children.get(parent, ())
        ]

    def take(self, node: int) -> None:
        trie = self._trie
        self._parents.append(self._taken[trie.parents[node]])
        self._taken[node] = len(self._tokens)
        self._tokens.append(trie.tokens[node])
        self._sources.append(trie.sources[node])

    def finish(self) -> DraftTree:
        return DraftTree(tuple(self._tokens), tuple(self._parents), tuple(self._sources))


def make() -> TreeBuilder:
    return BestFirstBuilder()
