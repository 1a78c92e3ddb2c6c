"""Best first, one candidate at a time, until the next one lowers tokens per second.

BASTION's rule (arXiv 2605.29727), over the whole batch: with S tokens expected and C seconds so
far, the next candidate of reach p is taken while p * C > S * (its seconds). The rule is local.
Where the cost of rows has steps it ends at the first edge, although the tile behind it may pay;
`goodput`, which looks past the edge and knows what time is worth elsewhere, is the one to use. Kept
to be compared with.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence as SequenceOf

from foreword.protocols import TreeBuilder
from foreword.types import Budget, DraftTree, Trie

priced = True  # looks at what a node costs: build.py gives it measured costs


class BastionBuilder:
    """Equal reach: the shallower node, then the smaller token, root, row. Weights are not looked
    at."""

    name = "bastion"

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        children = [_children(trie) for trie in tries]
        left = list(budget.per_sequence)
        # (-reach, depth, token, root, row, node of the trie, its parent in the tree)
        frontier: list[tuple[float, int, int, int, int, int, int]] = []
        for row, (root, trie) in enumerate(zip(roots, tries, strict=True)):
            for node in children[row].get(-1, ()):
                frontier.append((-trie.scores[node], 1, trie.tokens[node], root, row, node, 0))
        heapq.heapify(frontier)
        tokens = [[root] for root in roots]
        parents: list[list[int]] = [[-1] for _ in roots]
        sources = [[""] for _ in roots]
        expected, extra, taken = float(len(roots)), 0.0, 0
        while frontier and taken < budget.total:
            negative, depth, token, root, row, node, parent = heapq.heappop(frontier)
            if not left[row]:
                continue
            if budget.costs:
                more = budget.row_costs[row] if budget.row_costs else 0.0
                now, then = budget.costs[taken] + extra, budget.costs[taken + 1] + extra + more
                if -negative * now <= expected * (then - now):
                    break
                extra += more
            expected, taken, left[row] = expected - negative, taken + 1, left[row] - 1
            place, trie = len(tokens[row]), tries[row]
            tokens[row].append(token)
            parents[row].append(parent)
            sources[row].append(trie.sources[node])
            for child in children[row].get(node, ()):
                reach = negative * trie.scores[child]
                entry = (reach, depth + 1, trie.tokens[child], root, row, child, place)
                heapq.heappush(frontier, entry)
        return [
            DraftTree(tuple(ids), tuple(above), tuple(names))
            for ids, above, names in zip(tokens, parents, sources, strict=True)
        ]


def _children(trie: Trie) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for node, parent in enumerate(trie.parents):
        found.setdefault(parent, []).append(node)
    return found


def make() -> TreeBuilder:
    return BastionBuilder()
