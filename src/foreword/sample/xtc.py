"""XTC ("exclude top choices"): now and then, only the least likely of the likely ids may come.

At an output position where a uniform number of (seed, position), from a stream of its own, is
below `xtc_probability`: of the ids kept so far with p(v) = w(v) / block_sum(w) >= `xtc_threshold`,
if they are two or more, all but the last one by (logit descending, id ascending) are dropped.
(p-e-w, text-generation-webui pull request 6335, 2024; llama.cpp has the same.)
"""

from __future__ import annotations

import numpy as np

from foreword.sample import noise, portable
from foreword.sample.filters import Row, scaled
from foreword.sample.portable import Ids


def strikes(seed: int, position: int, probability: float) -> bool:
    """Whether anything is dropped at this position."""
    return probability > 0.0 and noise.chance(seed, noise.XTC, position) < probability


def kept(row: Row, ids: Ids | None, peak: float, temperature: float, threshold: float) -> Ids:
    """Those of `ids` (None: all unmasked), ascending; never none."""
    ids = np.flatnonzero(row > -np.inf) if ids is None else ids
    weights = portable.exp(scaled(row[ids], peak, temperature))
    likely = weights / portable.block_sum(weights, ids) >= threshold
    top = ids[likely]
    if len(top) < 2:
        return ids
    last = top[np.lexsort((top, -row[top]))[-1]]
    left: Ids = ids[~likely | (ids == last)]
    return left
