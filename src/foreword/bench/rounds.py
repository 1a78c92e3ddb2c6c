"""Interleaved repetitions: each round runs every case, so that a slow minute of a shared machine
hits all of them. A figure is the median over all repetitions; the best one is told beside it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Case = Callable[[], float]  # runs once, returns the seconds that count
Progress = Callable[[str, int, int], None]

_SECONDS_A_ROUND = 0.05  # short cases are repeated within a round until they took about this long
_MOST_A_ROUND = 20


@dataclass(slots=True)
class Samples:
    """Seconds of the repetitions of one case."""

    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


def interleave(
    cases: Mapping[str, Case], rounds: int, progress: Progress | None = None
) -> dict[str, Samples]:
    """Run every case once unmeasured, then `rounds` rounds of all of them."""
    counts = {}
    for number, (name, case) in enumerate(cases.items()):
        if progress is not None:
            progress("warming up", number, len(cases))
        started = time.perf_counter()
        case()
        spent = max(time.perf_counter() - started, 1e-9)  # not what it returns: that may be a part
        counts[name] = max(1, min(_MOST_A_ROUND, math.ceil(_SECONDS_A_ROUND / spent)))
    found = {name: Samples() for name in cases}
    for number in range(rounds):
        if progress is not None:
            progress("measuring", number, rounds)
        for name, case in cases.items():
            found[name].seconds += [case() for _ in range(counts[name])]
    if progress is not None:
        progress("measuring", rounds, rounds)
    return found
