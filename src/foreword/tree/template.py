"""One fixed shape for every step: which ranks are verified at which depth, whatever the scores.

Token Recycling (arXiv 2408.08696) verifies a static tree: a node is a path of ranks, such as "the
second guess after the first guess", and the shape was chosen once, from how often each rank is
right. Here the shape of n nodes are the n rank paths of highest reach, with one chance per rank
(`CHANCES`, the same at every depth). The budget is shared alike: sequence by sequence the same n,
a remainder to the first ones. Paths that a trie does not have stay empty. Loses against builders
that look at scores: rows go to the second guess of a sure drafter, and none to the tenth token of a
copy. Kept to be compared with.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf

from foreword.protocols import TreeBuilder
from foreword.types import Budget, DraftTree, Trie

# Chance that the guess of each rank is accepted: greedy outputs of SmolLM2-135M-Instruct on 60
# Spec-Bench questions, the target's eight highest ids where the same token was met last (5,833
# positions); further ranks are not tried.
CHANCES = (0.409, 0.09, 0.041, 0.029, 0.02, 0.017, 0.015, 0.013)


class TemplateBuilder:
    """Siblings are ranked by score; equal ones: the one drafted first."""

    name = "template"

    def __init__(self) -> None:
        self._shapes: dict[int, list[tuple[int, ...]]] = {}  # nodes -> rank paths, parents first

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        shares = _shares(budget, roots)
        rows = zip(roots, tries, shares, strict=True)
        return [self._fill(root, trie, nodes) for root, trie, nodes in rows]

    def _fill(self, root: int, trie: Trie, nodes: int) -> DraftTree:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(trie.parents):
            children.setdefault(parent, []).append(node)
        for siblings in children.values():
            siblings.sort(key=lambda node: -trie.scores[node])
        tokens, parents, sources = [root], [-1], [""]
        places: dict[tuple[int, ...], tuple[int, int]] = {(): (-1, 0)}  # in the trie, in the tree
        for path in self._shape(nodes):
            above = places.get(path[:-1])
            siblings = children.get(above[0], []) if above is not None else []
            if above is None or path[-1] >= len(siblings):
                continue
            node = siblings[path[-1]]
            places[path] = node, len(tokens)
            tokens.append(trie.tokens[node])
            parents.append(above[1])
            sources.append(trie.sources[node])
        return DraftTree(tuple(tokens), tuple(parents), tuple(sources))

    def _shape(self, nodes: int) -> list[tuple[int, ...]]:
        """The `nodes` rank paths of highest reach."""
        found = self._shapes.get(nodes)
        if found is None:
            found = self._shapes[nodes] = []
            frontier: list[tuple[float, tuple[int, ...]]] = [(-CHANCES[0], (0,))]
            while len(found) < nodes:
                reach, path = heapq.heappop(frontier)
                found.append(path)
                heapq.heappush(frontier, (reach * CHANCES[0], (*path, 0)))
                rank = path[-1]
                if rank + 1 < len(CHANCES):
                    reach *= CHANCES[rank + 1] / CHANCES[rank]
                    heapq.heappush(frontier, (reach, (*path[:-1], rank + 1)))
        return found


def _shares(budget: Budget, roots: SequenceOf[int]) -> list[int]:
    """Nodes of each sequence: alike, the remainder by root and then by row."""
    if not roots:
        return []
    each, more = divmod(max(0, budget.total), len(roots))
    first = set(sorted(range(len(roots)), key=lambda row: (roots[row], row))[:more])
    return [min(limit, each + (row in first)) for row, limit in enumerate(budget.per_sequence)]


def make() -> TreeBuilder:
    return TemplateBuilder()
