"""The distribution a token is drawn from: what is left of a logit row, as probabilities.

`Sampler.law` gives the target's; a drafter writes down its own. For approximate acceptance, and for
the audit that measures it: no token of exact mode depends on what is here, so the C library's exp
is good enough. Knows no seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foreword.sample.filters import Row
from foreword.sample.portable import Floats, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """`chances` float64 [vocab]: each >= 0, their sum 1 up to rounding. Not to be written to."""

    chances: Floats

    def of(self, token: int) -> float:
        """The chance of `token`; 0 for an id beyond the vocabulary."""
        return float(self.chances[token]) if token < len(self.chances) else 0.0

    def draw(self, coin: float) -> int:
        """The token at `coin` in (0, 1) of the running sum over ids; its chance is not 0."""
        running = np.add.accumulate(self.chances)
        place = int(np.searchsorted(running, coin * running[-1], side="right"))
        return place if place < len(running) else int(np.flatnonzero(self.chances)[-1])

    @property
    def peak(self) -> float:
        """The highest chance."""
        return float(self.chances.max())

    @property
    def entropy(self) -> float:
        """In nats."""
        some = self.chances[self.chances > 0.0]
        return float(-(some * np.log(some)).sum())


def softmax(row: Row, ids: Ids | None, peak: float, temperature: float) -> Law:
    """Of the kept `ids` (None = all) of float32 `row` [vocab], whose highest value is `peak`."""
    weights = np.zeros(len(row))
    with np.errstate(over="ignore", under="ignore"):
        if ids is None:
            np.exp((row.astype(np.float64) - peak) / temperature, out=weights)
        else:
            weights[ids] = np.exp((row[ids].astype(np.float64) - peak) / temperature)
    return normal(weights)


def point(token: int, vocab: int) -> Law:
    """The law that always gives `token`."""
    chances = np.zeros(vocab)
    chances[token] = 1.0
    return Law(chances)


def normal(weights: Floats) -> Law:
    """Weights >= 0, not all 0, as chances."""
    total = float(weights.sum())
    assert total > 0.0, "a law needs a token"
    return Law(weights / total)


def distance(one: Law, other: Law) -> float:
    """Total variation, 0 .. 1."""
    return 0.5 * float(np.abs(one.chances - other.chances).sum())
