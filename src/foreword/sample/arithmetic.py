"""Arithmetic sampling: each sample follows one number through the intervals of its tokens.

Idea: Vilnis et al., "Arithmetic sampling: parallel diverse decoding for large language models"
(ICML 2023, arXiv 2210.15458). The ids that may be chosen cut [0, 1) into intervals as long as their
probabilities, in ascending order of id. A code in [0, 1) lies in one of them: that is the token,
and the code's place inside the interval is the code of the next position. A code drawn uniformly
gives every token with its probability. The n samples of a request take the codes (i + u) / n, u
drawn once: each is distributed as plain sampling, together they are spread over the distribution.

One token, float64: w(v) = exp((logit(v) - highest) / temperature) of the kept ids (filters.py),
running sums R in ascending order of id, goal = code * R(last); the token is the first v with
R(v) > goal. Then x = (goal - R(v - 1)) / w(v) is the code's place, and p = w(v) / R(last) says what
the step has used up: a float64 knows its code to 2^-53, hence x to 2^-53 / p. The digits below are
drawn anew for this position, so that a long output never runs out of them:

    step = min(1, 2^-53 / p);  code = min(x, 1 - step) + step * (uniform of (seed, position))

Temperature 0 is the highest logit and uses nothing up. The code is a function of the tokens emitted
and their rows, and of nothing else. Knows no drafts and no other sample.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from foreword.protocols import Logits
from foreword.sample import filters, logprobs, noise, portable
from foreword.sample.filters import Row
from foreword.sample.law import Law
from foreword.sample.portable import Floats, Ids
from foreword.sample.sampler import (
    LOWEST_SCORE,
    GumbelSampler,
    kept,
    peak_id,
    ruled,
    temperature_of,
    tidy,
)
from foreword.types import Choice, Request, SamplingParams, TokenLogprobs

CODES = 8  # the stream of noise.philox that codes and their digits come from
RESOLUTION = 2.0**-53
RULES = GumbelSampler()  # asked for what does not depend on how a token is drawn
BLUR = 0.1  # how far, in probability, a drafter's running sums may be off the target's


class ArithmeticState:
    """What the next choice of one request depends on beyond its parameters."""

    __slots__ = ("ahead", "base", "code", "fresh", "params", "position")

    def __init__(self, request: Request) -> None:
        self.base = RULES.begin(request)  # the rules that change its rows, and its seed
        self.params = request.params
        self.position = 0  # tokens emitted
        given = request.params.arithmetic_code
        self.code = code_of(request.seed, 0, 1) if given is None else given
        self.fresh: tuple[Logits, int, float, float] | None = None  # the choice not yet emitted
        self.ahead: dict[int, float] = {}  # hints of `rank`: position -> code after its own guesses


class ArithmeticSampler:
    """Implements protocols.Sampler. `params` are resolved."""

    def begin(self, request: Request) -> ArithmeticState:
        return ArithmeticState(request)

    def choose(
        self,
        row: Logits,
        params: SamplingParams,
        state: ArithmeticState,
        position: int,
        token: int | None = None,
    ) -> Choice:
        """The token whose interval holds the state's code; `position` is for rules and errors.

        -inf marks ids that may not be chosen. Raises NonFiniteLogits on NaN, +inf or all -inf."""
        assert token is None, "SamplingParams refuses approximate acceptance"
        values = tidy(row)
        peak = float(values[peak_id(values, position)])
        token, place, share = self._pick(row, params, state, position)
        state.fresh = (row, token, place, share)
        count = params.logprobs
        if count is None:
            return Choice(token)
        if params.logprobs_mode == "raw":
            return Choice(token, logprobs.raw(values, peak, token, count))
        left = self.open_row(row, params, state, position)
        high, ids = float(left.max()), np.flatnonzero(left > -np.inf)
        found = logprobs.processed(left, ids, high, temperature_of(params), token, count)
        return Choice(token, found)

    def advance(self, row: Logits, state: ArithmeticState, token: int) -> None:
        """Only the token that `choose` gives for `row` can have been emitted."""
        fresh = state.fresh
        if fresh is None or fresh[0] is not row:
            fresh = (row, *self._pick(row, state.params, state, state.position))
        _, chosen, place, share = fresh
        assert chosen == token, (chosen, token)
        if share < 1.0:
            state.code = refined(place, share, state.base.seed, state.position)
        state.position += 1
        state.fresh = None
        state.ahead.clear()
        RULES.advance(row, state.base, token)

    def rank(
        self, row: Logits, params: SamplingParams, state: ArithmeticState, position: int, count: int
    ) -> list[tuple[int, float]]:
        """Up to `count` ids, those nearest to the code first; at the state's own position the first
        is `choose`'s. A later position has the code that follows if the first ids of the positions
        before are right. Scores: the share of each id in the code's neighbourhood."""
        row = ruled(tidy(row), state.base, position)  # a user's processors are not asked for hints
        temperature, peak = temperature_of(params), float(row[peak_id(row, position)])
        ids = kept(row, peak, params, state.base, position) if temperature else None
        if ids is not None:
            opened = np.full_like(row, -np.inf)
            opened[ids] = row[ids]
            row = opened
        code = state.code if position == state.position else state.ahead.get(position)
        if temperature == 0.0 or code is None:
            return _likeliest(row, peak, temperature or 1.0, count)
        ids, sums = intervals(row, peak, temperature)
        index, place, share = locate(sums, code)
        state.ahead[position + 1] = refined(place, share, state.base.seed, position)
        edges = np.concatenate(([0.0], sums)) / sums[-1]
        low, high = np.maximum(edges[:-1], code - BLUR), np.minimum(edges[1:], code + BLUR)
        near = np.maximum(high - low, 0.0) / (2.0 * BLUR)
        near[index] = max(near[index], float(near.max()))
        order = np.lexsort((np.abs(np.arange(len(ids)) - index), -near))
        order = np.concatenate(([index], order[order != index]))[:count]
        order = order[(near[order] > 0.0) | (order == index)]
        return _listed(ids[order], near[order])

    def _pick(
        self, row: Logits, params: SamplingParams, state: ArithmeticState, position: int
    ) -> tuple[int, float, float]:
        """The token, the code's place in its interval, and the interval's length (1 = all)."""
        row = self.open_row(row, params, state, position)
        best, temperature = peak_id(row, position), temperature_of(params)
        if temperature == 0.0:
            return best, state.code, 1.0
        ids, sums = intervals(row, float(row[best]), temperature)
        index, place, share = locate(sums, state.code)
        return int(ids[index]), place, share

    def open_row(
        self, row: Logits, params: SamplingParams, state: ArithmeticState, position: int
    ) -> Row:
        """After the request's rules, and -inf at the ids that the filters drop."""
        return RULES.open_row(row, params, state.base, position)

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        return RULES.score(rows, tokens, count)

    def law(
        self, row: Logits, params: SamplingParams, state: ArithmeticState, position: int
    ) -> Law:
        return RULES.law(row, params, state.base, position)

    def coin(self, state: ArithmeticState, position: int, number: int, since: int = 0) -> float:
        return RULES.coin(state.base, position, number, since)


def code_of(seed: int, index: int, count: int) -> float:
    """The code of sample `index` of `count` of a request with this seed: float64 in [0, 1)."""
    return min((index + digits(seed, 0)) / count, noise.LARGEST_BELOW_ONE)


def coded(params: SamplingParams, seed: int, index: int) -> SamplingParams:
    """The parameters of sample `index` of a request: for this sampler, with the code it follows."""
    if params.sampler != "arithmetic" or params.arithmetic_code is not None:
        return params
    code = code_of(seed, index, params.best_of or params.n)
    return replace(params, n=1, arithmetic_code=code)


def digits(seed: int, number: int) -> float:
    """Uniform in (0, 1): number 0 is the draw that a request's codes share, number t + 1 what is
    below the last digit of a code after the token at position t."""
    word = noise.philox((seed, CODES), (number, 0, 0, 0))[0]
    return float(noise.uniform(np.array([word], dtype=np.uint64))[0])


def refined(place: float, share: float, seed: int, position: int) -> float:
    """The code after a token of probability `share` in whose interval it was at `place`."""
    step = min(1.0, RESOLUTION / share)
    code = min(place, 1.0 - step) + step * digits(seed, position + 1)
    return min(max(code, 0.0), noise.LARGEST_BELOW_ONE)


def intervals(row: Row, peak: float, temperature: float) -> tuple[Ids, Floats]:
    """The unmasked ids of `row`, ascending, and the running sums of their weights."""
    ids = np.flatnonzero(row > -np.inf)
    weights = portable.exp(filters.scaled(row[ids], peak, temperature))
    return ids, np.add.accumulate(weights)


def locate(sums: Floats, code: float) -> tuple[int, float, float]:
    """Index of the interval that holds `code`, the place inside it and its share of the whole."""
    total = float(sums[-1])
    goal = code * total
    index = int(np.searchsorted(sums, goal, side="right"))
    if index == len(sums):  # the product has rounded up to the total: the last that has a length
        index = int(np.searchsorted(sums, total, side="left"))
    low = float(sums[index - 1]) if index else 0.0
    width = float(sums[index]) - low
    return index, (goal - low) / width, width / total


def _likeliest(row: Row, peak: float, temperature: float, count: int) -> list[tuple[int, float]]:
    ids = filters.first_k(row, min(count, len(row)))
    ids = ids[filters.descending(row[ids])]
    with np.errstate(under="ignore"):
        weights = np.exp(filters.scaled(row[ids], peak, temperature))
    return _listed(ids, weights / filters.rough_total(row, peak, temperature))


def _listed(ids: Ids, scores: Floats) -> list[tuple[int, float]]:
    bounded = np.clip(scores, LOWEST_SCORE, 1.0)
    return list(zip(ids.tolist(), bounded.tolist(), strict=True))
