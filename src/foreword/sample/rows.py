"""What drafters and tools ask beyond sampling: highest ids and log-softmax of whole logit rows.

The specification of kernels/cpu/sampling.py, which has the same bits. Order among ids as in
filters.py: (logit descending, id ascending). And the noise of single ids, as in noise.py.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from foreword.kernels._rows import check_ids, check_top_k, nan_in_row
from foreword.sample import filters, noise, portable

Rows = npt.NDArray[np.float32]


class NumpyRows:
    """Implements protocols.RowOps."""

    def top_k(self, rows: Rows, k: int) -> tuple[npt.NDArray[np.int32], Rows]:
        check_top_k(rows, k)
        ids = np.empty((len(rows), k), dtype=np.int32)
        for index, row in enumerate(rows):
            if np.isnan(row).any():
                raise nan_in_row(index)
            ids[index] = filters.descending(row)[:k]
        return ids, np.take_along_axis(rows, ids.astype(np.int64), axis=1)

    def gumbel(self, seed: int, position: int, ids: list[int]) -> list[float]:
        if ids and min(ids) < 0:
            raise ValueError(f"ids must be >= 0, got {min(ids)}")
        values: list[float] = noise.gumbel(seed, position, np.array(ids, dtype=np.int64)).tolist()
        return values

    def log_softmax(self, rows: Rows, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        check_ids(rows, ids)
        found = np.full(len(rows), np.nan)
        for index, (row, token) in enumerate(zip(rows, ids.tolist(), strict=True)):
            peak = float(row.max())
            if not np.isfinite(peak):
                continue
            shifted = row.astype(np.float64) - peak
            total = np.array([portable.block_sum(portable.exp(shifted))])
            found[index] = float(shifted[token]) - float(portable.log(total)[0])
        return found
