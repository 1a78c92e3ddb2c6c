"""Typical sampling: keep ids whose surprise is near the mean surprise of the row.

Meister, Pimentel, Wiher, Cotterell: "Locally typical sampling", 2022; transformers' `typical_p`. Of
the ids kept so far, with p(v) = w(v) / block_sum(w) and s(v) = (logit(v) - highest) / temperature,
surprise minus entropy is m - s(v), where m = -block_sum(w * -s) / block_sum(w): no logarithm is
needed. By (|s(v) - m| ascending, logit descending, id ascending), take the shortest prefix whose
float64 running sum of p reaches `typical_p`; kept is every id at most as far from m as its last.

That is an interval of logits, which need not hold the highest one.
"""

from __future__ import annotations

import numpy as np

from foreword.sample import portable
from foreword.sample.filters import Row, scaled
from foreword.sample.portable import Ids


def kept(row: Row, ids: Ids | None, peak: float, temperature: float, typical_p: float) -> Ids:
    """Those of `ids` (None: all unmasked), ascending; never none. 0 < typical_p < 1."""
    ids = np.flatnonzero(row > -np.inf) if ids is None else ids
    shifted = scaled(row[ids], peak, temperature)
    weights = portable.exp(shifted)
    total = portable.block_sum(weights, ids)
    with np.errstate(invalid="ignore", over="ignore"):
        pulls = np.where(weights > 0.0, weights * -shifted, 0.0)
        mean = -(portable.block_sum(pulls, ids) / total)
        distances = np.abs(shifted - mean)
    order = np.lexsort((ids, -row[ids], distances))
    running = np.add.accumulate(weights[order] / total)
    last = min(int(np.searchsorted(running, typical_p)), len(ids) - 1)
    near: Ids = ids[distances <= distances[order[last]]]
    return near
