"""One path per sequence: the naive builder, and the one to use when a test needs a fixed length.

Of every trie the path with the largest expected number of accepted tokens (sum of reach along it)
is kept, no longer than its sequence may verify. When the batch budget does not cover all paths they
are shortened from the end, all to about the same length; on the last, partly covered level the
nodes of highest reach stay. Linear in the nodes. Loses when the drafter hesitates between
continuations: one wrong token ends the path.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from foreword.protocols import TreeBuilder
from foreword.types import Budget, DraftTree, Trie


class ChainBuilder:
    """Trees without branches. Equal paths: the one drafted first. Equal reach on the last level:
    the smaller token, then the smaller root, and only then the earlier row."""

    name = "chain"

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        paths: list[list[int]] = []
        candidates: list[tuple[int, float, int, int, int]] = []  # depth, -reach, token, root, row
        rows = zip(roots, tries, budget.per_sequence, strict=True)
        for row, (root, trie, limit) in enumerate(rows):
            path, reaches = _best_path(trie, limit)
            paths.append(path)
            for depth, (node, reach) in enumerate(zip(path, reaches, strict=True)):
                candidates.append((depth, -reach, trie.tokens[node], root, row))
        candidates.sort()
        lengths = [0] * len(paths)
        for *_, row in candidates[: max(0, budget.total)]:
            lengths[row] += 1
        return [
            _chain(root, trie, path[:length])
            for root, trie, path, length in zip(roots, tries, paths, lengths, strict=True)
        ]


def _best_path(trie: Trie, limit: int) -> tuple[list[int], list[float]]:
    """Nodes and reaches of the path of at most `limit` nodes with the largest sum of reach."""
    depths: list[int] = []
    reaches: list[float] = []
    sums: list[float] = []
    best = -1
    for node, (parent, score) in enumerate(zip(trie.parents, trie.scores, strict=True)):
        below = parent >= 0
        depths.append(depths[parent] + 1 if below else 1)
        reaches.append(score * (reaches[parent] if below else 1.0))
        sums.append(reaches[node] + (sums[parent] if below else 0.0))
        if depths[node] <= limit and (best < 0 or sums[node] > sums[best]):
            best = node
    path: list[int] = []
    while best >= 0:
        path.append(best)
        best = trie.parents[best]
    path.reverse()
    return path, [reaches[node] for node in path]


def _chain(root: int, trie: Trie, path: list[int]) -> DraftTree:
    return DraftTree(
        (root, *(trie.tokens[node] for node in path)),
        tuple(range(-1, len(path))),
        ("", *(trie.sources[node] for node in path)),
    )


def make() -> TreeBuilder:
    return ChainBuilder()
