"""Speculative cascades: the drafter writes where it is as good as the target, by a rule.

Narasimhan et al. (arXiv 2405.19261, ICLR 2025). With p the target's law and q the drafter's, the
text is drawn from a third law by the ratio test (the rules and names are the paper's):

    opt    q, unless max q < max p - alpha * TV(p, q): then p
    diff   q, unless max q < max p - alpha: then p
    chow   q, unless max q < 1 - alpha: then p
    token  q(v) where p(v) >= (1 - alpha) * max p; the mass of all other v goes to p

A larger alpha leaves more to the drafter. The drafter's share is cut to what p allows and
renormalised: a masked or filtered token never comes. Where nothing was drafted, p.

Gives up: the distribution, for one between the two models; and since nothing is drafted at the end
of a path, draft length can be seen in the text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foreword.accept._odds import Odds, exactness
from foreword.accept._ratio import settle
from foreword.accept._walk import children, walk
from foreword.config import one_of, share
from foreword.protocols import Choose, Logits
from foreword.sample.law import Law, distance, normal
from foreword.types import DraftTree, Verdict

needs: frozenset[str] = frozenset({"law", "temperature"})
draws = True
keeps = False


@dataclass(frozen=True, slots=True)
class Config:
    """rule: opt, diff, chow or token. alpha: how much is left to the drafter, [0, 1]."""

    rule: str = "opt"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        one_of(self, "rule", tuple(RULES))
        share(self, "alpha")


class CascadeAcceptor:
    """Implements protocols.Approximate."""

    name = "cascade"

    def __init__(self, config: Config, odds: Odds) -> None:
        self.exactness = exactness(self.name, config)
        self.draws = odds.draws
        self._config = config
        self._odds = odds

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        def pick(node: int) -> int:
            below = children(tree, node)
            laws = {i: tree.laws[child] for i, child in enumerate(below) if child in tree.laws}
            law = self._odds.law(rows[node])
            for drafter in laws.values():
                law = mixed(law, drafter, self._config)
            return settle(law, [tree.tokens[child] for child in below], laws, self._odds.coin)

        return walk(tree, rows, choose, pick)


def mixed(target: Law, drafter: Law, config: Config) -> Law:
    """The law between the two that the rule asks for."""
    allowed = np.where(target.chances > 0.0, drafter.chances, 0.0)
    if not allowed.any():
        return target
    return RULES[config.rule](target, normal(allowed), config.alpha)


def _opt(p: Law, q: Law, alpha: float) -> Law:
    return p if q.peak < p.peak - alpha * distance(p, q) else q


def _diff(p: Law, q: Law, alpha: float) -> Law:
    return p if q.peak < p.peak - alpha else q


def _chow(p: Law, q: Law, alpha: float) -> Law:
    return p if q.peak < 1.0 - alpha else q


def _token(p: Law, q: Law, alpha: float) -> Law:
    kept = np.where(p.chances >= (1.0 - alpha) * p.peak, q.chances, 0.0)
    return normal(kept + (1.0 - float(kept.sum())) * p.chances)


RULES: dict[str, Callable[[Law, Law, float], Law]] = {
    "opt": _opt,
    "diff": _diff,
    "chow": _chow,
    "token": _token,
}


def make(config: Config, odds: Odds) -> CascadeAcceptor:
    return CascadeAcceptor(config, odds)
