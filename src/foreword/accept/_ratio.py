"""One position of a ratio test: keep a draft or draw what is left, so that the law is the target's.

A child drawn from q is kept with chance min(1, p(x) / q(x)), else p becomes max(p - q, 0),
renormalised (arXiv 2211.17192, 2302.01318). A child that was not drawn is a point mass: kept with
chance p(x), else x leaves p. Children are tried one after the other against what is then left of p
(SpecInfer, arXiv 2305.09781). If none is kept the token is drawn from the rest.

The emitted token has law p exactly, if coins are fresh and the children of a node depend on nothing
but the past and, for one drawn child, on its own draw: see protocols.DrawingDrafter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from foreword.sample.law import Law, normal

REST = 0  # the coin that draws from what is left; the others belong to the children


def settle(
    target: Law,
    drafted: list[int],
    laws: Mapping[int, Law],
    coin: Callable[[int], float],
) -> int:
    """A token with law `target`, one of `drafted` as often as may be. `laws[i]`: what the i-th of
    them was drawn from; at most one was."""
    left = target
    for place, token in enumerate(drafted):
        drawn_from = laws.get(place)
        if coin(place + 1) * (1.0 if drawn_from is None else drawn_from.of(token)) < left.of(token):
            return token
        left = without(left, token) if drawn_from is None else residual(left, drawn_from)
    return left.draw(coin(REST))


def residual(target: Law, drafter: Law) -> Law:
    """max(p - q, 0), renormalised; p itself where rounding leaves nothing (p = q: a draw from q is
    never refused but for rounding)."""
    over = np.maximum(target.chances - drafter.chances, 0.0)
    return normal(over) if over.any() else target


def without(target: Law, token: int) -> Law:
    rest = target.chances.copy()
    if token < len(rest):
        rest[token] = 0.0
    return normal(rest) if rest.any() else target
