"""Mirostat 2: keep ids whose surprise is at most mu, and steer mu so that what comes is as
surprising as asked for.

Basu, Ramachandran, Keskar, Varshney: "Mirostat", 2020; as llama.cpp does it. With s(v) = (logit(v)
- highest) / temperature, the surprise of an id in bits is (log(block_sum(w)) - s(v)) / ln 2. Kept
are ids of at most mu bits, and at least the highest logit's lowest id. Of an emitted token the
surprise among the kept ids, (log(block_sum(w of kept)) - s(token)) / ln 2, moves mu:

    mu <- mu - eta * (surprise - tau), at first mu = 2 * tau

At temperature 0 nothing is drawn, and mu stays. s counts as -708 where it is below.
"""

from __future__ import annotations

import math

import numpy as np

from foreword.sample import portable
from foreword.sample.filters import Row, scaled
from foreword.sample.portable import EXP_FLOOR, Ids
from foreword.types import SamplingParams

LN2 = math.log(2.0)


class Mirostat:
    """The state: `position` counts emitted tokens."""

    def __init__(self, params: SamplingParams) -> None:
        assert params.temperature is not None
        self.temperature = float(params.temperature)
        self.mu = 2.0 * params.mirostat_tau
        self._tau, self._eta = params.mirostat_tau, params.mirostat_eta
        self.position = 0

    def advance(self, surprise: float) -> None:
        self.mu -= self._eta * (surprise - self._tau)
        self.position += 1


def begin(params: SamplingParams) -> Mirostat | None:
    return Mirostat(params) if params.mirostat_mode and params.temperature else None


def kept(row: Row, peak: float, temperature: float, mu: float) -> Ids:
    """Ascending; never none."""
    ids = np.flatnonzero(row > -np.inf)
    shifted = scaled(row[ids], peak, temperature)
    scale = _log(portable.block_sum(portable.exp(shifted), ids))
    with np.errstate(over="ignore"):
        calm = ids[(scale - shifted) / LN2 <= mu]
    return calm if len(calm) else np.array([int(row.argmax())])


def surprise(row: Row, ids: Ids, peak: float, temperature: float, token: int) -> float:
    """Bits, of `token` among the kept `ids`."""
    scale = _log(portable.block_sum(portable.exp(scaled(row[ids], peak, temperature)), ids))
    shifted = float(scaled(row[token : token + 1], peak, temperature)[0])
    return (scale - max(shifted, EXP_FLOOR)) / LN2


def _log(total: float) -> float:
    return float(portable.log(np.array([total]))[0])
