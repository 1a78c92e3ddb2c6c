"""Raw log-probabilities: log-softmax of the target's own logits, before temperature and filters.

With d(v) = logit(v) - highest logit, logprob(v) = d(v) - log(block_sum(exp(d))): float64, by the
portable exp and log, and kept as the float64 it is. Masked ids (-inf) have no log-probability:
they add nothing to the sum and are never listed. Knows no parameters beyond "how many".
"""

from __future__ import annotations

import numpy as np

from foreword.sample import portable
from foreword.sample.filters import Row, descending, first_k
from foreword.types import TokenLogprobs


def raw(row: Row, peak: float, token: int, count: int) -> TokenLogprobs:
    """Of `token`, and of the `count` highest ids of float32 `row` [vocab] by (logit descending, id
    ascending); fewer where fewer are unmasked. `peak`: highest logit, finite."""
    shifted = row.astype(np.float64) - peak
    total = np.array([portable.block_sum(portable.exp(shifted))])
    scale = float(portable.log(total)[0])
    ids = first_k(row, min(count, len(row))) if count else np.empty(0, dtype=np.int64)
    ids = ids[descending(row[ids])]
    top = tuple((int(best), float(shifted[best]) - scale) for best in ids)
    return TokenLogprobs(token, float(shifted[token]) - scale, top)
