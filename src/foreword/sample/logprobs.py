"""Log-probabilities of one row: raw, of the target's own logits; or processed, of what is chosen
from.

raw        With d(v) = logit(v) - highest logit, logprob(v) = d(v) - log(block_sum(exp(d))): before
           rules, temperature and filters. -inf for a masked id.
processed  The same sum over what a request's rules and filters leave, at its temperature:
           d(v) = (processed logit(v) - highest) / temperature, summed over the ids that were kept.
           At temperature 0: of the processed logits as they are, whole (temperature 1, no filter).
           What was removed has none.

float64, by the portable exp and log, and kept as the float64 it is. Listed are the highest by
(logit descending, id ascending), masked and removed ids never: fewer where fewer are left. Knows no
parameters beyond "how many".
"""

from __future__ import annotations

import numpy as np

from foreword.protocols import RowOps
from foreword.sample import portable
from foreword.sample.filters import Row, descending, exact_total, first_k, scaled
from foreword.sample.portable import Floats, Ids
from foreword.types import TokenLogprobs

NONE: Ids = np.empty(0, dtype=np.int64)


def raw(row: Row, peak: float, token: int, count: int) -> TokenLogprobs:
    """Of `token`, and of the `count` highest ids of float32 `row` [vocab]. `peak`: highest logit,
    finite."""
    shifted = row.astype(np.float64) - peak
    scale = log(portable.block_sum(portable.exp(shifted)))
    ids = first_k(row, min(count, len(row))) if count else NONE
    ids = ids[descending(row[ids])]
    top = tuple((int(best), float(shifted[best]) - scale) for best in ids)
    return TokenLogprobs(token, float(shifted[token]) - scale, top)


def processed(
    row: Row, kept: Ids | None, peak: float, temperature: float, token: int, count: int
) -> TokenLogprobs:
    """Of `token`, one of `kept`, and of the `count` highest of them. row: float32 [vocab], after
    the rules; kept: the ids that the filters left, ascending, None = all; peak: highest logit of
    `row`, which is among them; temperature >= 0."""
    if temperature == 0.0:
        kept, temperature = None, 1.0
    values = row if kept is None else row[kept]
    scale = log(exact_total(values, kept, peak, temperature))
    places = first_k(values, min(count, len(values))) if count else NONE
    places = places[descending(values[places])]
    ids = places if kept is None else kept[places]
    logprobs = scaled(row[np.append(ids, token)], peak, temperature) - scale
    top = tuple(zip(ids.tolist(), logprobs[:-1].tolist(), strict=True))
    return TokenLogprobs(token, float(logprobs[-1]), top)


def of_rows(ops: RowOps, rows: Row, tokens: Ids, count: int) -> list[TokenLogprobs]:
    """`raw` of one of `tokens` int64 [rows] for each of `rows` float32 [rows, vocab], by compiled
    row operations: same bits. The rows are finite or masked, none wholly.

    The highest id's raw logprob is 0 - log(sum), which is all of the sum that another id needs."""
    best, values = ops.top_k(rows, min(max(count, 1), rows.shape[1]))  # [rows, count]
    peaks = values[:, :1].astype(np.float64)
    scales: Floats = -ops.log_softmax(rows, best[:, 0].astype(np.int64))[:, None]
    listed = values.astype(np.float64) - peaks - scales
    chosen = ops.log_softmax(rows, tokens)
    return [
        TokenLogprobs(
            int(token),
            float(chosen[index]),
            tuple(
                (int(best[index, place]), float(listed[index, place]))
                for place in range(min(count, len(best[index])))
                if values[index, place] > -np.inf
            ),
        )
        for index, token in enumerate(tokens)
    ]


def log(total: float) -> float:
    return float(portable.log(np.array([total]))[0])
