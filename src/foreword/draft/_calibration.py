"""From a source's own score to the chance that its guess is accepted, given that its parent was.

A score in (0, 1) is taken as odds, and multiplied by a factor that is looked up:

    odds(chance) = odds(score) * factor[source, kind, depth, evidence, score band] * trust[source]

A factor is what makes the guesses of its cell right on average: odds of what was observed over odds
of what was said, both as fading sums. A cell that has seen little leans on the one above, which
knows only source, kind and band, and that one on the score as it is, so that nothing changes before
something is known. `kind` is greedy or sampled. Trust is the request's own: it moves with every
guess by how surprising the answer was, and ends with the request.

Every candidate whose parent lies on the emitted text is an observation, verified or not: what the
target chose there is known. So nothing is learned only about what was thought good.

Memory: one entry per cell, a few thousand per source. Frozen: every factor stays as it is.
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass, field

BANDS = (0.03, 0.08, 0.16, 0.28, 0.42, 0.58, 0.72, 0.84, 0.93, 0.97)  # ends of the score bands
DEPTHS = (0, 0, 1, 2, 2, 3, 3, 3, 3, 4)  # depth -> cell; deeper counts as the last
EVIDENCE = 63  # larger numbers count as this
FADING = 1.0 - 1.0 / 600.0  # what an observation leaves of those before it in its cell
LEANING = 100.0  # observations that a cell borrows from the one above
DOUBT = 20.0  # and the uppermost from the score as it is
LEAST, MOST = 0.002, 0.995  # chances said
TRUST_STEP = 0.07
TRUST = (0.05, 20.0)
BINS = 10  # of the reliability plot

Cell = tuple[str | int, ...]
Trust = dict[str, float]  # of one request, by source


@dataclass(slots=True)
class _Sums:
    """Fading sums over the guesses of a cell."""

    said: float = 0.0  # scores
    right: float = 0.0
    count: float = 0.0

    def add(self, score: float, right: bool) -> None:
        self.said = self.said * FADING + score
        self.right = self.right * FADING + right
        self.count = self.count * FADING + 1.0

    def factor(self, above: float, leaning: float) -> float:
        """Odds of the observed over odds of the said, leaning on the factor `above`."""
        if not self.count:
            return above
        said = self.said / self.count
        leant = scaled(said, above)
        right = (self.right + leaning * leant) / (self.count + leaning)
        return odds(right) / odds(said)


@dataclass(slots=True)
class Reliability:
    """What was said and what came, in equal bands of the chance said."""

    counts: list[int] = field(default_factory=lambda: [0] * BINS)
    said: list[float] = field(default_factory=lambda: [0.0] * BINS)
    right: list[int] = field(default_factory=lambda: [0] * BINS)

    def add(self, chance: float, right: bool) -> None:
        band = min(int(chance * BINS), BINS - 1)
        self.counts[band] += 1
        self.said[band] += chance
        self.right[band] += right

    @property
    def error(self) -> float:
        """Expected calibration error: |said - observed| over all guesses."""
        total = sum(self.counts)
        gaps = (abs(said - right) for said, right in zip(self.said, self.right, strict=True))
        return sum(gaps) / total if total else 0.0


class Calibration:
    """Factors of all cells. One object per composite; it may serve any number of requests."""

    def __init__(self, learning: bool = True) -> None:
        self.learning = learning
        self.reliability: dict[str, Reliability] = {}  # by source, filled while learning
        self._factors: dict[Cell, float] = {}
        self._sums: dict[Cell, _Sums] = {}

    def chance(
        self, source: str, kind: int, depth: int, evidence: int, score: float, trust: float = 1.0
    ) -> tuple[float, Cell]:
        """The chance, and the cell to `learn` in when the answer is known."""
        place = DEPTHS[depth] if depth < len(DEPTHS) else DEPTHS[-1]
        cell = (source, kind, bisect(BANDS, score), place, min(evidence, EVIDENCE))
        factor = self._factors.get(cell)
        if factor is None:
            factor = self._factors.get(cell[:3], 1.0)
        factor *= trust
        score = min(score, MOST)
        chance = score * factor / (1.0 - score + score * factor)
        return min(max(chance, LEAST), MOST), cell

    def learn(self, cell: Cell, score: float, chance: float, right: bool) -> None:
        """A guess with `score`, said to have `chance`, was right or not."""
        if not self.learning:
            return
        score = min(score, MOST)
        above = cell[:3]
        for part in (above, cell):
            sums = self._sums.get(part)
            if sums is None:
                sums = self._sums[part] = _Sums()
            sums.add(score, right)
        self._factors[above] = factor = self._sums[above].factor(1.0, DOUBT)
        self._factors[cell] = self._sums[cell].factor(factor, LEANING)
        plot = self.reliability.get(str(cell[0]))
        if plot is None:
            plot = self.reliability[str(cell[0])] = Reliability()
        plot.add(chance, right)

    def adapt(self, trust: Trust, source: str, chance: float, right: bool) -> None:
        """Move a request's trust in a source by how surprising one answer was."""
        if self.learning:
            moved = trust.get(source, 1.0) * math.exp(TRUST_STEP * (right - chance))
            trust[source] = min(max(moved, TRUST[0]), TRUST[1])


def odds(chance: float) -> float:
    chance = min(max(chance, LEAST), MOST)
    return chance / (1.0 - chance)


def scaled(chance: float, factor: float) -> float:
    """The chance whose odds are `factor` times as high."""
    return chance * factor / (1.0 - chance + chance * factor)
