"""From one logit row to one token: the specification every faster chain must equal bit for bit.

    the user's processors -> rules -> filters -> noise of (seed, position)
        -> arg-max of logit + temperature * noise -> logprobs

Pure: row, parameters, state and position decide, nothing else. Temperature 0 is the same rule
without noise, and needs no filter (see filters.py). Knows nothing of drafts or trees: one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import numpy as np

from foreword.errors import NonFiniteLogits
from foreword.protocols import ALL_MASKED, NON_FINITE, NONE_LEFT, OVERFLOWED, Logits, Rule
from foreword.sample import filters, logprobs, mirostat, noise, perturbed, typical, user, xtc
from foreword.sample.filters import Row
from foreword.sample.law import Law, point, softmax
from foreword.sample.mirostat import Mirostat
from foreword.sample.portable import Floats, Ids
from foreword.sample.rules import rules_of
from foreword.sample.user import UserProcessors
from foreword.types import Choice, Request, SamplingParams, TokenLogprobs

RIVALS = 8  # strongest ids beyond the ones asked for that `rank` weighs its scores against
LOWEST_SCORE = 1e-9


@dataclass(frozen=True, slots=True)
class SamplerState:
    """What a request's choices depend on beyond its parameters: a function of the emitted tokens
    and their rows. A deep copy is a state of its own."""

    seed: int  # 0 .. 2**64 - 1
    rules: tuple[Rule, ...] = ()  # in the order they change the row
    user: UserProcessors | None = None  # before the rules
    mirostat: Mirostat | None = None  # instead of the filters


class GumbelSampler:
    """Implements protocols.Sampler. `params` are resolved: no sampling field is None."""

    def begin(self, request: Request) -> SamplerState:
        assert 0 <= request.seed <= noise.MASK, request.seed
        return SamplerState(
            request.seed,
            rules_of(request),
            user.begin(request),
            mirostat.begin(request.params),
        )

    def advance(self, row: Logits, state: SamplerState, token: int) -> None:
        if state.mirostat is not None:  # first: what it looks at is the row of this token
            state.mirostat.advance(self.surprise(row, state, state.mirostat, token))
        for rule in state.rules:
            rule.advance(row, token)
        if state.user is not None:
            state.user.advance(token)

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

        -inf marks ids that may not be chosen. Raises NonFiniteLogits on NaN, +inf or all -inf, and
        RequestError for a user-supplied processor."""
        row = tidy(row)
        peak = float(row[peak_id(row, position)])
        left = processed(row, state, position)
        best = peak_id(left, position, processed=True)
        temperature = temperature_of(params)
        ids, high = None, float(left[best])
        if temperature > 0.0:
            ids = kept(left, high, params, state, position)
        if token is not None:
            assert left[token] > -np.inf, f"id {token} is masked at output position {position}"
        elif temperature == 0.0:
            token = best
        else:
            token = int(_strongest(left, ids, temperature, state, position, 1)[0][0])
        count = params.logprobs
        if count is None:
            return Choice(token)
        if params.logprobs_mode == "raw":
            return Choice(token, logprobs.raw(row, peak, token, count))
        if ids is not None:
            high = float(left[ids].max())
        return Choice(token, logprobs.processed(left, ids, high, temperature, token, count))

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        found = []
        for place, token in enumerate(tokens):
            row = tidy(rows[place])
            peak = float(row[peak_id(row)])
            found.append(logprobs.raw(row, peak, token, count))
        return found

    def rank(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int, count: int
    ) -> list[tuple[int, float]]:
        """Up to `count` ids by (logit + temperature * noise descending, id ascending); the first is
        `choose`'s, but for user-supplied processors, which are not asked. Scores in (0, 1], hints
        only: at temperature 0 the softmax of the logits, else the softmax of (logit + temperature *
        noise) / temperature over these ids and 8 rivals."""
        row = tidy(row)
        peak_id(row, position)
        row = ruled(row, state, position)
        best = peak_id(row, position, processed=True)
        temperature = temperature_of(params)
        if temperature == 0.0:
            ids = filters.first_k(row, min(count, len(row)))
            ids = ids[filters.descending(row[ids])]
            peak = float(row[best])
            weights = softmax_terms(row[ids].astype(np.float64), peak, 1.0)
            total = filters.rough_total(row, peak, 1.0)
        else:
            kept_ids = kept(row, float(row[best]), params, state, position)
            ids, scores = _strongest(row, kept_ids, temperature, state, position, count + RIVALS)
            return hints(ids, scores, temperature, count)
        return _listed(ids, weights / total, count)

    def open_row(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int
    ) -> Row:
        """float32 [vocab], an own copy: what `choose` chooses from, -inf at every id it cannot be
        (at temperature 0: the processed row, no id dropped by filters)."""
        row = tidy(row)
        peak_id(row, position)
        left = processed(row, state, position)
        best = peak_id(left, position, processed=True)
        ids = None
        if temperature_of(params) > 0.0:
            ids = kept(left, float(left[best]), params, state, position)
        if ids is None:
            return left.copy()
        found = np.full_like(left, -np.inf)
        found[ids] = left[ids]
        return found

    def law(self, row: Logits, params: SamplingParams, state: SamplerState, position: int) -> Law:
        """The chance of each token that `choose` may give here, over all seeds."""
        left = processed(tidy(row), state, position)
        best = peak_id(left, position, processed=True)
        temperature, high = temperature_of(params), float(left[best])
        if temperature == 0.0:
            return point(best, len(left))
        return softmax(left, kept(left, high, params, state, position), high, temperature)

    def coin(self, state: SamplerState, position: int, number: int, since: int = 0) -> float:
        return noise.coin(state.seed, position, number, since)

    def surprise(self, row: Logits, state: SamplerState, steered: Mirostat, token: int) -> float:
        """mirostat.surprise of `token`, about to be noted as emitted from the target's `row`."""
        left = processed(tidy(row), state, steered.position)
        peak = float(left[peak_id(left, steered.position, processed=True)])
        ids = mirostat.kept(left, peak, steered.temperature, steered.mu)
        return mirostat.surprise(left, ids, peak, steered.temperature, token)


def kept(
    row: Row, peak: float, params: SamplingParams, state: SamplerState, position: int
) -> Ids | None:
    """Ascending ids of a processed row that every filter keeps; None where no filter is on. Peak:
    its highest value. Order: temperature, top-k, top-p, min-p, typical-p, XTC; or mirostat."""
    assert params.top_k is not None
    assert params.top_p is not None
    assert params.min_p is not None
    temperature = temperature_of(params)
    if state.mirostat is not None:
        return mirostat.kept(row, peak, temperature, state.mirostat.mu)
    ids = filters.kept(row, peak, temperature, params.top_k, params.top_p, params.min_p)
    if params.typical_p is not None and params.typical_p < 1.0:
        ids = typical.kept(row, ids, peak, temperature, params.typical_p)
    if xtc.strikes(state.seed, position, params.xtc_probability):
        ids = xtc.kept(row, ids, peak, temperature, params.xtc_threshold)
    return ids


def _strongest(
    row: Row,
    ids: Ids | None,
    temperature: float,
    state: SamplerState,
    position: int,
    count: int,
) -> tuple[Ids, Floats]:
    """The `count` ids with the highest perturbed scores among `ids`, None = all."""
    if ids is None:
        words = noise.words(state.seed, position, len(row))
        return perturbed.strongest(row, words, temperature, count)
    if len(ids) == 1:
        return ids, np.zeros(1)
    words = noise.words(state.seed, position, ids)
    indices, scores = perturbed.strongest(row[ids], words, temperature, count)
    return ids[indices], scores


def processed(row: Row, state: SamplerState, position: int) -> Row:
    """What the request makes of its row: a copy, or the row itself where nothing is asked."""
    if state.user is not None:
        return ruled(state.user.answer(row, position), state, position)
    return ruled(row, state, position)


def ruled(row: Row, state: SamplerState, position: int) -> Row:
    """The same without the user-supplied processors."""
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


def peak_id(row: Row, position: int | None = None, processed: bool = False) -> int:
    """Lowest id of the highest logit. NaN counts as highest for argmax, so one look finds all three
    kinds of bad row."""
    best = int(row.argmax())
    if not math.isfinite(row[best]):
        masked = bool(row[best] == -np.inf)
        after, before = (NONE_LEFT, OVERFLOWED), (ALL_MASKED, NON_FINITE)
        raise bad_row(position, (after if processed else before)[not masked])
    return best


def bad_row(position: int | None, fault: int) -> NonFiniteLogits:
    """position: of the output; None: a row of the prompt."""
    where = "inside the prompt" if position is None else f"at output position {position}"
    advice = "check the checkpoint, or try --numerics float32"
    if fault == NONE_LEFT:
        return NonFiniteLogits(
            f"no id is left {where}: grammar, allowed_token_ids, bad_words, "
            "min_tokens and logits_processors mask them all; allow more"
        )
    if fault == OVERFLOWED:
        advice = "lower the penalties"
    kind = "only masked ids" if fault == ALL_MASKED else "NaN or infinity"
    when = "the processed logits" if fault == OVERFLOWED else "the logits"
    return NonFiniteLogits(f"{when} {where} hold {kind}; {advice}")


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
