"""Sample-and-match: the target's own choice decides at every visited node; drafts only save time.

Walk from the root; at each node the target picks a token from its own logits; where a child holds
that token the walk goes on there, else it stops. What is emitted is therefore what plain decoding
emits, token by token. Rows off the path are never looked at. Knows no sampling and no stop rule:
both are inside `choose`.
"""

from __future__ import annotations

from foreword.protocols import Choose, Logits
from foreword.types import DraftTree, Verdict


class ExactAcceptor:
    """The acceptor of the contract."""

    name = "exact"

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        """`rows` float32 [nodes, vocab]; `choose` is called once per emitted token, in order."""
        assert len(rows) == len(tree), (len(rows), len(tree))
        tokens: list[int] = []
        path: list[int] = []
        num_accepted = 0
        node = 0
        while True:
            token, finished = choose(rows[node])
            tokens.append(token)
            child = tree.child(node, token)
            num_accepted += child is not None
            if finished or child is None:
                return Verdict(tuple(tokens), tuple(path), num_accepted, finished)
            path.append(child)
            node = child


def make() -> ExactAcceptor:
    return ExactAcceptor()
