"""The ids with the highest logit + temperature * noise of one row: the Gumbel-max choice.

`ranked` is the definition: score(v) = float64(logit(v)) + temperature * gumbel(v), one product and
one sum, ordered by (score descending, id ascending). `strongest` gives the same ids and scores
while evaluating the portable logarithms for a few ids only. (Gumbel-max: Maddison, Tarlow, Minka:
"A* sampling", 2014, and older folklore.) Knows words and values, not seeds, positions or filters.
"""

from __future__ import annotations

import math

import numpy as np

from foreword.sample.filters import Row
from foreword.sample.noise import Words, gumbel_of
from foreword.sample.portable import Floats, Ids

DIRECT = 256  # up to so many values the definition itself is fastest
HOTTEST = 1e30  # above it float32 bounds could overflow
NOISE_CEILING = np.float32(53.0 * math.log(2.0))
SLACK = 1e-4  # bound on the float32 error of a ceiling, per unit of temperature (3e-5 by analysis)


def ranked(values: Row, words: Words, temperature: float, indices: Ids) -> tuple[Ids, Floats]:
    """`indices` ordered by (score descending, index ascending), and their float64 scores."""
    with np.errstate(over="ignore"):
        scores = values[indices].astype(np.float64) + temperature * gumbel_of(words[indices])
    order = np.lexsort((indices, -scores))
    return indices[order], scores[order]


def strongest(values: Row, words: Words, temperature: float, count: int) -> tuple[Ids, Floats]:
    """The first `count` of `ranked` over all unmasked indices of `values` float32 [n], words [n].

    Every true score is at most its ceiling. The exact scores of the `count` highest ceilings give a
    floor that the answer cannot be below; only indices whose ceiling reaches it are evaluated.
    """
    if len(values) <= max(DIRECT, count) or temperature > HOTTEST:
        indices, scores = ranked(values, words, temperature, np.flatnonzero(values > -np.inf))
        return indices[:count], scores[:count]
    ceilings = score_ceilings(values, words, temperature)
    _, scores = ranked(values, words, temperature, highest(ceilings, count))
    survivors = np.flatnonzero(ceilings >= below(scores[-1], temperature))
    indices, scores = ranked(values, words, temperature, survivors)
    unmasked = int(np.count_nonzero(scores[:count] > -np.inf))
    return indices[:unmasked], scores[:unmasked]


def score_ceilings(values: Row, words: Words, temperature: float) -> Row:
    """float32 [n]: upper bounds of the scores, up to `below`'s allowance.

    With c = 2^53 - 1 - (top 53 bits), 1 - u >= max(c, 1) / 2^53 and -log(u) >= 1 - u, so the noise
    -log(-log(u)) is at most 53 * log(2) - log(max(c, 1)). Tight where the noise is high.
    """
    complement = ~words
    complement >>= np.uint64(11)
    ceilings: Row = complement.view(np.int64).astype(np.float32)
    np.maximum(ceilings, np.float32(1.0), out=ceilings)
    np.log(ceilings, out=ceilings)
    np.subtract(NOISE_CEILING, ceilings, out=ceilings)
    with np.errstate(under="ignore", over="ignore"):
        ceilings *= np.float32(temperature)
        ceilings += values
    return ceilings


def below(score: float, temperature: float) -> np.float32:
    """A float32 that the ceiling of every score >= `score` reaches. The last float32 sum of a
    ceiling rounds monotonically: rounding this bound down covers it whatever the logits' size."""
    with np.errstate(over="ignore", under="ignore"):
        bound = np.float32(score - temperature * SLACK - 1e-40)
        lower: np.float32 = np.nextafter(bound, np.float32(-np.inf))
    return lower


def highest(ceilings: Row, count: int) -> Ids:
    if count == 1:
        return np.array([ceilings.argmax()])
    return np.argpartition(ceilings, len(ceilings) - count)[len(ceilings) - count :]
