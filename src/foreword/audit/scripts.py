"""Draft scripts that know the answer and misuse it: `anti` is always wrong, `noisy` branches.

They reach what honest drafters seldom do: whole trees refused, ends inside a path, and accepted
nodes that are not the first child, so that rows must move in the KV cache. Hints only, like any
draft.
"""

from __future__ import annotations

from collections.abc import Iterable

from foreword.draft.scripted import Node, Reference, Script, right_by_chance
from foreword.types import Sequence

DEPTH = 15  # tokens ahead, the engine's own default


def anti(reference: Reference, vocab_size: int) -> Script:
    """A path of tokens that are not the reference's."""

    def script(sequence: Sequence, budget: int) -> Iterable[Node]:
        start = sequence.num_output
        for depth, token in enumerate(reference(sequence)[start : start + DEPTH]):
            yield depth - 1, (token + 1 + depth) % vocab_size, 0.9

    return script


def noisy(reference: Reference, vocab_size: int) -> Script:
    """Two wrong children at every node of the path, a likelier and a less likely one, beside the
    reference's token, which is itself missing at about one position in five."""
    right = right_by_chance(0.8, "noisy")

    def script(sequence: Sequence, budget: int) -> Iterable[Node]:
        start, parent, node = sequence.num_output, -1, 0
        for depth, token in enumerate(reference(sequence)[start : start + DEPTH]):
            yield parent, (token + 1) % vocab_size, 0.9
            yield parent, token if right(sequence, depth) else (token + 3) % vocab_size, 0.85
            yield parent, (token + 2) % vocab_size, 0.5
            parent, node = node + 1, node + 3

    return script


SCRIPTS = {"anti": anti, "noisy": noisy}
