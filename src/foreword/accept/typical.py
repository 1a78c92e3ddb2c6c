"""Typical acceptance: a draft passes if the target finds it likely enough, not if it chose it.

Medusa (arXiv 2401.10774): token x passes where p(x) > min(epsilon, delta * exp(-H(p))), p being
what the target would draw from (after processors, temperature and filters) and H its entropy: the
flatter p, the less is asked. Among children that pass, the likeliest is followed. Medusa looks for
the longest passing path instead; here nothing below a node is known before its token is emitted,
because processors follow the text. Where none passes the target's own choice is emitted.

Gives up: the distribution. Drafts crowd out what the target would have drawn, the more the hotter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foreword.accept._odds import Odds, exactness
from foreword.accept._walk import children, walk
from foreword.config import share
from foreword.protocols import Choose, Logits
from foreword.types import DraftTree, Verdict

needs: frozenset[str] = frozenset({"temperature"})
draws = False
keeps = False


@dataclass(frozen=True, slots=True)
class Config:
    """epsilon: never asks for more than this chance, [0, 1]. delta: share of exp(-entropy), [0,
    1]."""

    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        share(self, "epsilon", "delta")


class TypicalAcceptor:
    """Implements protocols.Approximate."""

    name = "typical"
    draws = False

    def __init__(self, config: Config, odds: Odds) -> None:
        self.exactness = exactness(self.name, config)
        self._config = config
        self._odds = odds

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        def pick(node: int) -> int | None:
            drafted = [tree.tokens[child] for child in children(tree, node)]
            return self._likely(rows[node], drafted) if drafted else None

        return walk(tree, rows, choose, pick)

    def _likely(self, row: Logits, drafted: list[int]) -> int | None:
        law = self._odds.law(row)
        floor = min(self._config.epsilon, self._config.delta * math.exp(-law.entropy))
        best = max(drafted, key=lambda token: (law.of(token), -token))
        return best if law.of(best) > floor else None


def make(config: Config, odds: Odds) -> TypicalAcceptor:
    return TypicalAcceptor(config, odds)
