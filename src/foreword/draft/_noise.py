"""What known noise makes of guessed chances: the target picks the arg-max of logit + T * gumbel.

Dividing by T and adding a constant, that is the arg-max of log(share) + gumbel over the shares at
temperature T (Gumbel-max; as a drafter's rule: coupling by shared noise, arXiv 2408.07978). Noise
belongs to (seed, position, id), so it is known before the target is asked: an id with a small share
and high noise may be the likeliest choice. Knows no rows and no sequences.
"""

from __future__ import annotations

import math

MEDIAN = 1.0 / math.log(2.0)  # exp of the median of a Gumbel: what the best of the others weighs


def under_noise(shares: list[float], noise: list[float], rest: float) -> list[float]:
    """The chance that each candidate is chosen, where `shares` at the sampling temperature are
    guesses and `rest` is the share of everything that is no candidate."""
    weights = [share * math.exp(height) for share, height in zip(shares, noise, strict=True)]
    total = sum(weights) + MEDIAN * rest
    return [weight / total for weight in weights] if total > 0.0 else shares
