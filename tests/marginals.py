"""Closed forms of what a sampler may draw from one row, written without the package, and the power
of a chi-square test against a stated other law. Helper of the tests of samplers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from foreword.audit.chi_square import critical, power_at

Chances = np.ndarray  # float64 [vocab], sum 1


def chances(
    p: Any,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    typical_p: float = 1.0,
) -> Chances:
    """temperature -> top-k -> top-p -> min-p -> typical-p over probabilities `p`: loops, no
    shortcuts."""
    weights = {token: value ** (1.0 / temperature) for token, value in enumerate(p) if value > 0.0}
    order = sorted(weights, key=lambda token: (-weights[token], token))
    kept = order[:top_k] if top_k > 0 else order
    if top_p < 1.0:
        total, running, prefix = sum(weights[token] for token in kept), 0.0, []
        for token in kept:
            prefix.append(token)
            running += weights[token] / total
            if running >= top_p:
                break
        kept = prefix
    kept = [token for token in kept if weights[token] >= min_p * weights[order[0]]]
    if typical_p < 1.0:
        total = sum(weights[token] for token in kept)
        share = {token: weights[token] / total for token in kept}
        entropy = -sum(value * math.log(value) for value in share.values())
        nearest = sorted(kept, key=lambda token: (abs(-math.log(share[token]) - entropy), token))
        running, kept = 0.0, []
        for token in nearest:
            kept.append(token)
            running += share[token]
            if running >= typical_p:
                break
    found = np.zeros(len(p))
    for token in kept:
        found[token] = weights[token]
    return found / found.sum()


def power(null: Chances, true: Chances, draws: int, alpha: float) -> float:
    """The chance that `draws` from `true` are found not to be from `null`."""
    possible = null > 0.0
    outside = float(true[~possible].sum())
    seen = 1.0 - (1.0 - outside) ** draws  # one impossible draw is enough
    freedom = int(possible.sum()) - 1
    if freedom == 0:
        return seen
    shift = draws * float(((true - null)[possible] ** 2 / null[possible]).sum())
    return max(seen, power_at(shift, critical(alpha, freedom), freedom))


def tilted(null: Chances, variation: float) -> Chances:
    """The law at this total variation that chi-square sees worst: every chance moved in proportion
    to itself, one half of the ids up and the other half down."""
    ids = np.flatnonzero(null)
    order = ids[np.argsort(-null[ids], kind="stable")]
    up, share = [], 0.0
    for token in order:
        if share + null[token] <= 0.5 or not up:
            up.append(token)
            share += null[token]
    true = null.copy()
    if share >= 1.0 - 1e-12:
        return true
    true[up] *= 1.0 + variation / share
    down = [token for token in ids if token not in up]
    true[down] *= 1.0 - variation / (1.0 - share)
    assert (true >= 0.0).all()
    assert math.isclose(true.sum(), 1.0)
    return true
