"""Which ids of one logit row may be chosen: temperature -> top-k -> top-p -> min-p, in this order.

Order among ids is always (logit descending, id ascending); ids at -inf are masked and never kept.
With w(v) = exp((logit(v) - highest logit) / temperature):

- top-k keeps exactly k ids, the first in that order (fewer where fewer are unmasked).
- top-p renormalises over what top-k kept, p(v) = w(v) / block_sum(w), and keeps the shortest prefix
  whose float64 running sum of p reaches `top_p`; all of it where rounding leaves the sum short.
- min-p keeps w(v) >= min_p: the probability relation p(v) >= min_p * highest p, which no
  renormalisation changes, so the filters before it do not move its threshold.

The highest logit's lowest id passes every filter: what is kept is never empty, and greedy choice
(temperature 0) needs no filter at all. Divisions are by temperatures > 0 and may overflow to -inf,
where w is 0. Knows no noise, no position and no request.

Shortcuts (float32 totals, heads of the row) decide only where their error cannot matter; close
calls are settled by the portable functions: the answer is always that of the definition above.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from foreword.sample import portable
from foreword.sample.portable import Floats, Ids

Row = npt.NDArray[np.float32]

HEADS = (6.0, 12.0, 24.0, math.inf)  # nats below the highest: how much of a row top-p sorts
ROUGH = 1e-4  # relative error of `rough_total`, with room to spare (about 5e-6 by analysis)


def kept(
    row: Row, peak: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> Ids | None:
    """Ascending int64 ids that pass, or None where no filter is on (all but masked ids).

    row: float32 [vocab]; peak: its highest value, finite; temperature > 0; top_k <= 0 = off.
    """
    assert temperature > 0.0, temperature
    ids: Ids | None = None
    if 0 < top_k < len(row):
        ids = first_k(row, top_k)
    if top_p < 1.0:
        ids = nucleus(row, ids, peak, temperature, top_p)
    if min_p > 0.0:
        ids = above_min_p(row, ids, peak, temperature, min_p)
    return ids


def first_k(row: Row, k: int) -> Ids:
    """The k ids first in (logit descending, id ascending), returned ascending; 0 < k <= vocab."""
    threshold = np.partition(row, len(row) - k)[len(row) - k]
    above = np.flatnonzero(row > threshold)
    ties = np.flatnonzero(row == threshold)[: k - len(above)]
    ids = np.sort(np.concatenate((above, ties)))
    return ids[row[ids] > -np.inf]


def descending(values: Row) -> Ids:
    """Indices of float32 `values` by (value descending, index ascending); no NaN.

    Sorts one integer per value: its bits in an order-keeping form, complemented, then its index.
    """
    bits = (values + np.float32(0.0)).view(np.int32)  # the sum makes -0.0 equal to 0.0
    rising = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    keys = np.left_shift((~rising).astype(np.int64), 32) | np.arange(len(values))
    return np.sort(keys) & 0xFFFFFFFF


def nucleus(row: Row, ids: Ids | None, peak: float, temperature: float, top_p: float) -> Ids:
    """Shortest prefix of `ids` (None = all) whose probabilities reach `top_p`; ascending."""
    values = row if ids is None else row[ids]
    rough = rough_total(values, peak, temperature)
    for nats in HEADS:
        head = within(values, peak, temperature, nats)
        order = head[descending(values[head])]
        weights = portable.exp(scaled(values[order], peak, temperature))
        if nats < math.inf and weights.sum() < top_p * rough * (1.0 + ROUGH):
            continue  # the prefix may be longer than this head
        length = clear_cut(weights, top_p * rough)
        if length is None:
            length = exact_cut(weights, exact_total(values, ids, peak, temperature), top_p)
        break
    chosen = np.sort(order[:length])
    return chosen if ids is None else ids[chosen]


def clear_cut(weights: Floats, goal: float) -> int | None:
    """Length of the shortest prefix whose sum reaches `goal`; None if its error may decide."""
    running = np.add.accumulate(weights)
    early = int(np.searchsorted(running, goal * (1.0 - ROUGH)))
    late = int(np.searchsorted(running, goal * (1.0 + ROUGH)))
    return early + 1 if early == late < len(weights) else None


def exact_cut(weights: Floats, total: float, top_p: float) -> int:
    """Length of the shortest prefix whose float64 running sum of weight / total reaches `top_p`."""
    running = np.add.accumulate(weights / total)
    return min(int(np.searchsorted(running, top_p)) + 1, len(weights))


def above_min_p(row: Row, ids: Ids | None, peak: float, temperature: float, min_p: float) -> Ids:
    """Those of `ids` (None = all) whose weight is at least `min_p`, ascending."""
    values = row if ids is None else row[ids]
    near = within(values, peak, temperature, -math.log(min_p) + 1e-6)
    weights = portable.exp(scaled(values[near], peak, temperature))
    chosen = near[weights >= min_p]
    return chosen if ids is None else ids[chosen]


def scaled(values: Row, peak: float, temperature: float) -> Floats:
    """(value - peak) / temperature in float64: one difference, one true division."""
    with np.errstate(over="ignore"):
        result: Floats = (values.astype(np.float64) - peak) / temperature
    return result


def exact_total(values: Row, ids: Ids | None, peak: float, temperature: float) -> float:
    """block_sum of the weights of `ids` (None: `values` are the whole row)."""
    return portable.block_sum(portable.exp(scaled(values, peak, temperature)), ids)


def rough_total(values: Row, peak: float, temperature: float) -> float:
    """`exact_total` within a relative error of ROUGH, in float32: no bit may depend on it."""
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        inverse = np.float32(1.0 / max(temperature, 1e-30))
        exponents = np.minimum((values - np.float32(peak)) * inverse, np.float32(0.0))
        return float(np.exp(exponents).sum(dtype=np.float64))


def within(values: Row, peak: float, temperature: float, nats: float) -> Ids:
    """Indices of all unmasked values with (value - peak) / temperature >= -nats; values just below
    may come along, never one without those above it."""
    lowest = peak - temperature * nats - abs(peak) * 1e-12
    if lowest < -3e38:
        return np.flatnonzero(values > -np.inf)
    return np.flatnonzero(values >= np.nextafter(np.float32(lowest), np.float32(-np.inf)))
