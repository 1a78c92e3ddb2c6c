"""The walk that approximate acceptors share: emit, follow the child that holds what was emitted."""

from __future__ import annotations

from collections.abc import Callable

from foreword.protocols import Choose, Logits
from foreword.types import DraftTree, Verdict


def walk(
    tree: DraftTree, rows: Logits, choose: Choose, pick: Callable[[int], int | None]
) -> Verdict:
    """`pick(node)` names the token to emit after a node, or None for the target's own choice; it is
    asked once per emitted token, in order."""
    assert len(rows) == len(tree), (len(rows), len(tree))
    tokens: list[int] = []
    path: list[int] = []
    num_accepted = 0
    node = 0
    while True:
        token, finished = choose(rows[node], pick(node))
        tokens.append(token)
        child = tree.child(node, token)
        num_accepted += child is not None
        if finished or child is None:
            return Verdict(tuple(tokens), tuple(path), num_accepted, finished)
        path.append(child)
        node = child


def children(tree: DraftTree, node: int) -> list[int]:
    """The nodes below `node`, in the tree's order."""
    return [child for child, parent in enumerate(tree.parents) if parent == node]
