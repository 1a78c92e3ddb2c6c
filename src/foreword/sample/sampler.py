"""From one logit row to one token: the specification every faster chain must equal bit for bit.

    filters -> noise of (seed, position) -> arg-max of logit + temperature * noise -> logprobs

Pure: row, parameters, state and position decide, nothing else. Temperature 0 is the same rule
without noise, and needs no filter (see filters.py). Knows nothing of drafts or trees: one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from foreword.errors import NonFiniteLogits
from foreword.protocols import Logits, Rule
from foreword.sample import filters, logprobs, noise, perturbed
from foreword.sample.filters import Row
from foreword.sample.law import Law, point, softmax
from foreword.sample.portable import Floats, Ids
from foreword.sample.rules import rules_of
from foreword.types import Choice, Request, SamplingParams

RIVALS = 8  # strongest ids beyond the ones asked for that `rank` weighs its scores against
LOWEST_SCORE = 1e-9


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What a request's choices depend on beyond its parameters."""

    seed: int  # 0 .. 2**64 - 1
    rules: tuple[Rule, ...] = ()  # in the order they change the row


class GumbelSampler:
    """Implements protocols.Sampler. `params` are resolved: no sampling field is None."""

    def begin(self, request: Request) -> SamplerState:
        assert 0 <= request.seed <= noise.MASK, request.seed
        return SamplerState(request.seed, rules_of(request))

    def advance(self, row: Logits, state: SamplerState, token: int) -> None:
        for rule in state.rules:
            rule.advance(row, token)

    def choose(
        self,
        row: Logits,
        params: SamplingParams,
        state: SamplerState,
        position: int,
        token: int | None = None,
    ) -> Choice:
        """Token at output position `position` >= 0 from float32 `row` [vocab], any strides; or
        `token`, which someone else chose and no rule forbids.

        -inf marks ids that may not be chosen. Raises NonFiniteLogits on NaN, +inf or all -inf."""
        row = tidy(row)
        peak = float(row[peak_id(row, position)])
        open_row = processed(row, state, position)
        best = peak_id(open_row, position)
        if token is not None:
            assert open_row[token] > -np.inf, f"id {token} is masked at output position {position}"
        elif temperature_of(params) == 0.0:
            token = best
        else:
            token = int(self._strongest(open_row, best, params, state, position, 1)[0][0])
        if params.logprobs is None:
            return Choice(token)
        return Choice(token, logprobs.raw(row, peak, token, params.logprobs))

    def rank(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int, count: int
    ) -> list[tuple[int, float]]:
        """Up to `count` ids by (logit + temperature * noise descending, id ascending); the first is
        `choose`'s. Scores in (0, 1], hints only: at temperature 0 the softmax of the logits, else
        the softmax of (logit + temperature * noise) / temperature over these ids and 8 rivals."""
        row = processed(tidy(row), state, position)
        best = peak_id(row, position)
        temperature = temperature_of(params)
        if temperature == 0.0:
            ids = filters.first_k(row, min(count, len(row)))
            ids = ids[filters.descending(row[ids])]
            peak = float(row[best])
            weights = softmax_terms(row[ids].astype(np.float64), peak, 1.0)
            total = filters.rough_total(row, peak, 1.0)
        else:
            ids, scores = self._strongest(row, best, params, state, position, count + RIVALS)
            return hints(ids, scores, temperature, count)
        return _listed(ids, weights / total, count)

    def law(self, row: Logits, params: SamplingParams, state: SamplerState, position: int) -> Law:
        """The chance of each token that `choose` may give here, over all seeds."""
        row = processed(tidy(row), state, position)
        best = peak_id(row, position)
        temperature = temperature_of(params)
        if temperature == 0.0:
            return point(best, len(row))
        assert params.top_k is not None
        assert params.top_p is not None
        assert params.min_p is not None
        peak = float(row[best])
        ids = filters.kept(row, peak, temperature, params.top_k, params.top_p, params.min_p)
        return softmax(row, ids, peak, temperature)

    def coin(self, state: SamplerState, position: int, number: int, since: int = 0) -> float:
        return noise.coin(state.seed, position, number, since)

    def _strongest(
        self,
        row: Row,
        best: int,
        params: SamplingParams,
        state: SamplerState,
        position: int,
        count: int,
    ) -> tuple[Ids, Floats]:
        """The `count` ids with the highest perturbed scores among those the filters keep."""
        assert params.top_k is not None
        assert params.top_p is not None
        assert params.min_p is not None
        temperature = temperature_of(params)
        peak = float(row[best])
        ids = filters.kept(row, peak, temperature, params.top_k, params.top_p, params.min_p)
        if ids is None:
            words = noise.words(state.seed, position, len(row))
            return perturbed.strongest(row, words, temperature, count)
        if len(ids) == 1:
            return ids, np.zeros(1)
        words = noise.words(state.seed, position, ids)
        indices, scores = perturbed.strongest(row[ids], words, temperature, count)
        return ids[indices], scores


def processed(row: Row, state: SamplerState, position: int) -> Row:
    """What the request's rules make of its row: a copy, or the row itself where there are none."""
    if not state.rules:
        return row
    row = row.copy()
    for rule in state.rules:
        rule.apply(row, position)
    return row


def temperature_of(params: SamplingParams) -> float:
    assert params.temperature is not None, "parameters are resolved before sampling"
    return float(params.temperature)


def tidy(row: Logits) -> Row:
    """The same float32 values, contiguous and aligned."""
    assert row.dtype == np.float32, row.dtype
    assert row.ndim == 1, row.shape
    flags = row.flags
    if flags.c_contiguous and flags.aligned:
        return row
    return np.require(row, requirements=("C", "A"))


def peak_id(row: Row, position: int) -> int:
    """Lowest id of the highest logit. NaN counts as highest for argmax, so one look finds all three
    kinds of bad row."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        raise bad_row(position, all_masked=bool(row[best] == -np.inf))
    return best


def bad_row(position: int, *, all_masked: bool) -> NonFiniteLogits:
    kind = "only masked ids" if all_masked else "NaN or infinity"
    return NonFiniteLogits(
        f"the logits at output position {position} hold {kind}; check the checkpoint, "
        "or try --numerics float32"
    )


def hints(ids: Ids, scores: Floats, temperature: float, count: int) -> list[tuple[int, float]]:
    """`rank`'s answer: the softmax of perturbed `scores`, which descend, of the first `count`."""
    weights = softmax_terms(scores, float(scores[0]), temperature)
    return _listed(ids, weights / float(weights.sum()), count)


def _listed(ids: Ids, likely: Floats, count: int) -> list[tuple[int, float]]:
    bounded = np.clip(likely, LOWEST_SCORE, 1.0)
    return list(zip(ids[:count].tolist(), bounded[:count].tolist(), strict=True))


def softmax_terms(scores: Floats, peak: float, temperature: float) -> Floats:
    """exp((score - peak) / temperature), a hint: the C library's exp is good enough."""
    with np.errstate(over="ignore", under="ignore"):
        terms: Floats = np.exp((scores - peak) / temperature)
    return terms


def make() -> GumbelSampler:
    return GumbelSampler()
