"""One logit row of a beam: the tokens that may come next and what each adds to the beam's score.

score(v) = (l(v) - m) - log(block_sum(exp(raw - m))), float64, where l is the row after the
request's rules, raw the row before them and m its highest logit. Where a rule leaves a logit alone
this is the raw log-probability to the bit (logprobs.py, RowOps.log_softmax); a masked id cannot
come; a logit that a rule moved counts as moved, over the same sum (as Hugging Face applies its
processors to log-probabilities). No temperature and no filter takes part: beams are ranked.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from foreword.protocols import Logits
from foreword.sample import filters, portable
from foreword.sample.law import Law
from foreword.sample.sampler import GumbelSampler, SamplerState, peak_id, processed, tidy
from foreword.types import Choice, Request, SamplingParams, TokenLogprobs

RULES = GumbelSampler()  # asked for what does not depend on how a token is drawn

Candidate = tuple[int, float]  # token id, what it adds to the score


class Expansion:
    """The state of a request that expands a beam. `found`: up to `count` candidates by (score
    descending, id ascending), None before its row was there; empty where every id is masked."""

    __slots__ = ("base", "count", "found")

    def __init__(self, base: SamplerState, count: int) -> None:
        self.base = base
        self.count = count
        self.found: list[Candidate] | None = None


class ExpansionSampler:
    """Implements protocols.Sampler for requests with `expand` > 0, which emit one token more: what
    they have emitted before is their beam, and the token itself, the best one, is nobody's."""

    def begin(self, request: Request) -> Expansion:
        return Expansion(RULES.begin(request), request.expand)

    def choose(
        self,
        row: Logits,
        params: SamplingParams,
        state: Expansion,
        position: int,
        token: int | None = None,
    ) -> Choice:
        """Raises NonFiniteLogits on NaN, +inf, or a row that is -inf before any rule."""
        state.found = candidates(tidy(row), state.base, position, state.count)
        return Choice(state.found[0][0] if state.found else 0)

    def advance(self, row: Logits, state: Expansion, token: int) -> None:
        """A token of the beam; its row is not known any more."""
        if state.found is None:
            RULES.advance(row, state.base, token)

    def rank(
        self, row: Logits, params: SamplingParams, state: Any, position: int, count: int
    ) -> list[tuple[int, float]]:
        """Nothing is drafted for a beam."""
        return []

    def open_row(
        self, row: Logits, params: SamplingParams, state: Expansion, position: int
    ) -> filters.Row:
        return processed(tidy(row), state.base, position)

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        return RULES.score(rows, tokens, count)

    def law(self, row: Logits, params: SamplingParams, state: Expansion, position: int) -> Law:
        return RULES.law(row, params, state.base, position)

    def coin(self, state: Expansion, position: int, number: int, since: int = 0) -> float:
        return RULES.coin(state.base, position, number, since)


def candidates(row: filters.Row, state: SamplerState, position: int, count: int) -> list[Candidate]:
    """Of float32 `row` [vocab], by (score descending, id ascending)."""
    peak = float(row[peak_id(row, position)])
    shifted = portable.exp(row.astype(np.float64) - peak)
    scale = float(portable.log(np.array([portable.block_sum(shifted)]))[0])
    row = processed(row, state, position)
    if row.max() == -np.inf:
        return []
    peak_id(row, position, processed=True)
    ids = filters.first_k(row, min(count, len(row)))
    ids = ids[filters.descending(row[ids])]
    scores = (row[ids].astype(np.float64) - peak) - scale
    return list(zip(ids.tolist(), scores.tolist(), strict=True))
