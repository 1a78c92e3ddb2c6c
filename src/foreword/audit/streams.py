"""Does chance belong to (seed, position)? Asked of the sampler alone, on rows without preferences.

The audit compares an engine with itself: a noise that ignored the position or the seed would be
the same wrong noise in both. On a flat row only the noise decides, so here it shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from foreword.protocols import Sampler
from foreword.types import Request, SamplingParams

POSITIONS = 64
LEAST_DISTINCT = 8  # of 64 independent draws among 32 ids or more: a miss has odds below 1e-20


def stream_faults(sampler: Sampler, vocab_size: int, seed: int) -> list[str]:
    """What is wrong with the randomness, one line each; empty when all is well."""
    size = min(vocab_size, 4096)
    assert size >= 32, vocab_size
    row = np.zeros(size, dtype=np.float32)
    params = SamplingParams(temperature=1.0).resolve({})

    def choose(state: Any, position: int) -> int:
        return sampler.choose(row, params, state, position).token_id

    one, two = (sampler.begin(Request("", (0,), params, other)) for other in (seed, seed ^ 1))
    first = [choose(one, position) for position in range(POSITIONS)]
    other = [choose(two, position) for position in range(POSITIONS)]
    again = [choose(one, position) for position in reversed(range(POSITIONS))][::-1]
    fresh = sampler.begin(Request("", (0,), params, seed))
    alone = choose(fresh, POSITIONS // 2)
    faults = []
    if len(set(first)) < LEAST_DISTINCT:
        faults.append("the noise does not depend on the position")
    if first == other:
        faults.append("the noise does not depend on the seed")
    if first != again or alone != first[POSITIONS // 2]:
        faults.append("the noise depends on what was drawn before: a shared or running stream")
    return faults
