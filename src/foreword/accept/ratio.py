"""The ratio test of speculative sampling: the target's distribution, not its stream.

Leviathan et al. (arXiv 2211.17192), Chen et al. (arXiv 2302.01318). Each emitted token has exactly
the law of plain sampling, after processors, temperature and filters; which token a seed gives
depends on the drafts. A drafter with a distribution of its own draws from it and is accepted with
chance 1 - TV(p, q), the most that is possible; other drafts are point masses, which gain nothing
over exact mode.

Gives up: a seed no longer names a text; batch mates, draft length and drafter can be seen in it.
"""

from __future__ import annotations

from dataclasses import dataclass

from foreword.accept._odds import Odds, exactness
from foreword.accept._ratio import settle
from foreword.accept._walk import children, walk
from foreword.protocols import Choose, Logits
from foreword.types import DraftTree, Verdict

needs: frozenset[str] = frozenset({"temperature"})
draws = True
keeps = True


@dataclass(frozen=True, slots=True)
class Config:
    """Nothing to set."""


class RatioAcceptor:
    """Implements protocols.Approximate."""

    name = "ratio"

    def __init__(self, config: Config, odds: Odds) -> None:
        self.exactness = exactness(self.name, config, "distribution kept")
        self.draws = odds.draws
        self._odds = odds

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        """The last token too is drawn with coins of this walk: noise that a drafter may have used
        must not decide where drafts end."""

        def pick(node: int) -> int:
            below = children(tree, node)
            return settle(
                self._odds.law(rows[node]),
                [tree.tokens[child] for child in below],
                {i: tree.laws[child] for i, child in enumerate(below) if child in tree.laws},
                self._odds.coin,
            )

        return walk(tree, rows, choose, pick)


def make(config: Config, odds: Odds) -> RatioAcceptor:
    return RatioAcceptor(config, odds)
