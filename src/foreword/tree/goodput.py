"""Spend as many nodes as pay: where the tokens of a step are worth most beside the time it takes.

All candidates of the batch are ordered by reach times the weight of their sequence. A child never
outranks its parent, so every prefix is parent-closed and no other choice of as many nodes expects
more tokens. Of all prefixes the one is taken where

    weighted tokens expected - rate * seconds(nodes)

is largest: `rate` is what steps bring per second lately, so a node is verified when it brings
tokens faster than the engine's time otherwise does, and a poor step stays small instead of filling
up with what would be good enough for a poor step. Without a rate, where tokens per second of this
step alone peak. Costs have steps (16 rows share a tile), so the scan does not stop at the first
prefix that is worse than the one before (BASTION, arXiv 2605.29727, does): it goes on past the dip,
to the end of what there is. No nodes at all is always among the choices, so speculation turns
itself off, and on again when better candidates come.

Never below plain decoding by its own numbers: the rate is at least that of the roots alone.
Cost: one sort, then a scan. As good as the scores and the cost curve.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from foreword import compiled
from foreword.protocols import TreeBuilder
from foreword.types import Budget, DraftTree, Trie

priced = True  # looks at what a node costs: build.py gives it measured costs

Candidate = tuple[float, int, int, int, int, int]  # (-worth, depth, token, root, row, trie node)


class GoodputBuilder:
    """Ties as in best_first: the shallower node, then the smaller token, root, row."""

    name = "goodput"

    def __init__(self) -> None:
        self._loops = compiled.loops()

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        if self._loops:
            return _trees(roots, tries, self._loops.choose_nodes(roots, tries, budget))
        order = _eligible(_ranked(roots, tries, budget), tries, budget)
        chosen = order[: _best_size(order, len(roots), budget)]
        return _trees(roots, tries, [(row, node) for *_, row, node in chosen])


def _ranked(roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget) -> list[Candidate]:
    """All nodes of all tries, the most valuable first."""
    found: list[Candidate] = []
    for row, (root, trie, limit) in enumerate(zip(roots, tries, budget.per_sequence, strict=True)):
        if limit < 1 or budget.total < 1:
            continue
        weight = budget.weights[row] if budget.weights else 1.0
        worths: list[float] = []
        depths: list[int] = []
        nodes = zip(trie.parents, trie.scores, trie.tokens, strict=True)
        for node, (parent, score, token) in enumerate(nodes):
            if parent < 0:
                worth, depth = -weight * score, 1
            else:
                worth, depth = worths[parent] * score, depths[parent] + 1
            worths.append(worth)
            depths.append(depth)
            found.append((worth, depth, token, root, row, node))
    found.sort()
    return found


def _eligible(ranked: list[Candidate], tries: SequenceOf[Trie], budget: Budget) -> list[Candidate]:
    """Up to `total` of them, and of each sequence no more than its limit and what follows."""
    if len(ranked) <= budget.total and all(
        len(trie) <= limit for trie, limit in zip(tries, budget.per_sequence, strict=True)
    ):
        return ranked
    left = list(budget.per_sequence)
    kept: list[Candidate] = []
    for candidate in ranked:
        if len(kept) == budget.total:
            break
        row = candidate[4]
        if left[row]:  # once full it takes nothing more, so no child without its parent
            left[row] -= 1
            kept.append(candidate)
    return kept


def _best_size(order: list[Candidate], sequences: int, budget: Budget) -> int:
    """How many of `order` to verify."""
    if not budget.costs:
        return len(order)
    tokens = float(sum(budget.weights) if budget.weights else sequences)
    costs, row_costs = budget.costs, budget.row_costs
    rate = max(budget.rate, tokens / costs[0])
    best, size, extra = tokens - rate * costs[0], 0, 0.0
    for count, (worth, _, _, _, row, _) in enumerate(order, start=1):
        tokens -= worth
        if row_costs:
            extra += row_costs[row]
        seconds = costs[count] + extra
        if not budget.rate and tokens > rate * seconds:  # a higher peak: the next must exceed it
            best, size, rate = 0.0, count, tokens / seconds
        elif budget.rate and tokens - rate * seconds > best:
            best, size = tokens - rate * seconds, count
    return size


def _trees(
    roots: SequenceOf[int], tries: SequenceOf[Trie], chosen: list[tuple[int, int]]
) -> list[DraftTree]:
    """The chosen (row, node of its trie) as trees, each in the order of worth."""
    tokens = [[root] for root in roots]
    parents: list[list[int]] = [[-1] for _ in roots]
    sources = [[""] for _ in roots]
    moved: list[dict[int, int]] = [{-1: 0} for _ in roots]
    for row, node in chosen:
        trie, places = tries[row], moved[row]
        parents[row].append(places[trie.parents[node]])
        places[node] = len(tokens[row])
        tokens[row].append(trie.tokens[node])
        sources[row].append(trie.sources[node])
    return [
        DraftTree(tuple(ids), tuple(above), tuple(names))
        for ids, above, names in zip(tokens, parents, sources, strict=True)
    ]


def make() -> TreeBuilder:
    return GoodputBuilder()
