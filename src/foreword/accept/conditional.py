"""Conditional verification: next to the target's choice, a draft nearly as likely as the best.

The lossy half of AASD (arXiv 2505.13204): in greedy decoding a draft that is not the arg-max also
passes if its target probability is above a threshold that adapts to the row. The paper's threshold
is not public; ours is a share of the highest probability, and a least one: token x passes where
p(x) >= max(minimum, share * max p). A sure target is overruled by nobody, a torn one by what it
nearly said. At temperature 0 probabilities are those of temperature 1.

Gives up: at temperature 0 the arg-max where two tokens are close; above, the distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

from foreword import config as options
from foreword.accept._odds import Odds, exactness
from foreword.accept._walk import children, walk
from foreword.protocols import Choose, Logits
from foreword.types import DraftTree, Verdict

needs: frozenset[str] = frozenset()
draws = False
keeps = False


@dataclass(frozen=True, slots=True)
class Config:
    """share: of the highest probability, [0, 1]; 1 lets ties through only. minimum: probability
    that is asked in any case, [0, 1]."""

    share: float = 0.5
    minimum: float = 0.1

    def __post_init__(self) -> None:
        options.share(self, "share", "minimum")


class ConditionalAcceptor:
    """Implements protocols.Approximate."""

    name = "conditional"
    draws = False

    def __init__(self, config: Config, odds: Odds) -> None:
        self.exactness = exactness(self.name, config)
        self._config = config
        self._odds = odds

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        def pick(node: int) -> int | None:
            drafted = [tree.tokens[child] for child in children(tree, node)]
            return self._close(rows[node], drafted) if drafted else None

        return walk(tree, rows, choose, pick)

    def _close(self, row: Logits, drafted: list[int]) -> int | None:
        """The likeliest draft, if it is close to the likeliest token."""
        law = self._odds.soft_law(row)
        best = max(drafted, key=lambda token: (law.of(token), -token))
        chance = law.of(best)
        floor = max(self._config.minimum, self._config.share * law.peak)
        return best if chance > 0.0 and chance >= floor else None


def make(config: Config, odds: Odds) -> ConditionalAcceptor:
    return ConditionalAcceptor(config, odds)
