"""Block verification: a whole drafted path is tested at once; the distribution is the target's.

Sun et al. (arXiv 2403.10444). With x_1 .. x_n drawn from q, M_0 = 1 and M_i = min(M_{i-1} p(x_i) /
q(x_i), 1), the prefix of i tokens is acceptable with chance

    M_n for i = n, else R_i / (R_i + 1 - M_i),  R_i = sum over v of max(M_i p(v) - q(v), 0)

p and q being the laws after it; the longest acceptable prefix is emitted, and then a token from
max(M_i p - q, 0), renormalised (after the whole path: from p). On average no fewer drafts are kept
than by `ratio`. To know the laws along the path before anything is emitted, the sampler's state
goes ahead on a copy.

Gives up: as `ratio`, a seed no longer names a text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foreword.accept._odds import Odds, exactness
from foreword.accept._walk import children, walk
from foreword.protocols import Choose, Logits
from foreword.sample.law import Law, normal
from foreword.sample.portable import Floats
from foreword.types import DraftTree, Verdict

needs: frozenset[str] = frozenset({"law", "temperature"})
draws = True
keeps = True


@dataclass(frozen=True, slots=True)
class Config:
    """Nothing to set."""


class BlockAcceptor:
    """Implements protocols.Approximate."""

    name = "block"

    def __init__(self, config: Config, odds: Odds) -> None:
        self.exactness = exactness(self.name, config, "distribution kept")
        self.draws = odds.draws
        self._odds = odds
        odds.copied_state()  # RequestError now rather than in the middle of a text

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        path = drawn_path(tree)
        drafted = [tree.tokens[node] for node in path]
        ahead = self._odds.ahead([rows[node] for node in [0, *path]], drafted)
        laws = [tree.laws[node] for node in path]
        coins = [self._odds.coin(number) for number in range(len(path) + 1)]
        emitted = iter(verified(ahead, laws, drafted, coins))

        def pick(node: int) -> int:
            token = next(emitted, None)
            if token is None:  # the last token happens to be a draft that was not drawn
                token = self._odds.law(rows[node]).draw(self._odds.coin(0))
            return token

        return walk(tree, rows, choose, pick)


def verified(
    targets: list[Law], laws: list[Law], drafted: list[int], coins: list[float]
) -> list[int]:
    """The drafts that are kept and one token more. `targets` [n + 1]: the target's laws at the root
    and after each draft; `laws` [n]: what each draft was drawn from; `coins` [n + 1]: the first
    draws the last token."""
    mass, kept, rest = 1.0, 0, _rest(1.0, targets[0], laws[0] if laws else None)
    for count, (token, drawn_from) in enumerate(zip(drafted, laws, strict=True), start=1):
        mass = min(mass * targets[count - 1].of(token) / drawn_from.of(token), 1.0)
        last = count == len(drafted)
        over = _rest(mass, targets[count], None if last else laws[count])
        room = float(over.sum())
        chance = mass if last else room / (room + 1.0 - mass) if room + 1.0 > mass else 1.0
        if coins[count] < chance:
            kept, rest = count, over
    law = normal(rest) if rest.any() else targets[kept]
    return [*drafted[:kept], law.draw(coins[0])]


def _rest(mass: float, target: Law, drafter: Law | None) -> Floats:
    """max(mass * p - q, 0); p where nothing was drafted."""
    if drafter is None:
        return target.chances
    over: Floats = np.maximum(mass * target.chances - drafter.chances, 0.0)
    return over


def drawn_path(tree: DraftTree) -> list[int]:
    """The nodes of the drawn path below the root."""
    path: list[int] = []
    node = 0
    while below := [child for child in children(tree, node) if child in tree.laws]:
        node = below[0]
        path.append(node)
    return path


def make(config: Config, odds: Odds) -> BlockAcceptor:
    return BlockAcceptor(config, odds)
