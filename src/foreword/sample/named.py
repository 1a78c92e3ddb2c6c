"""The samplers by name, behind one: `SamplingParams.sampler` decides when a request begins.

What a request is asked afterwards goes to the sampler whose state it has. A request that expands a
beam draws no token at all and has a sampler of its own. Knows no rows.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from foreword.protocols import Logits, Sampler
from foreword.sample.arithmetic import ArithmeticSampler, ArithmeticState
from foreword.sample.expansion import Expansion, ExpansionSampler
from foreword.sample.law import Law
from foreword.types import Choice, Request, SamplingParams, TokenLogprobs


class NamedSamplers:
    """Implements protocols.Sampler. `gumbel`: the default, compiled or not."""

    def __init__(self, gumbel: Sampler) -> None:
        self._gumbel = gumbel
        self._arithmetic = ArithmeticSampler()
        self._expansion = ExpansionSampler()

    def begin(self, request: Request) -> Any:
        if request.expand:
            return self._expansion.begin(request)
        if request.params.sampler == "arithmetic":
            return self._arithmetic.begin(request)
        return self._gumbel.begin(request)

    def choose(
        self,
        row: Logits,
        params: SamplingParams,
        state: Any,
        position: int,
        token: int | None = None,
    ) -> Choice:
        return self._of(state).choose(row, params, state, position, token)

    def advance(self, row: Logits, state: Any, token: int) -> None:
        self._of(state).advance(row, state, token)

    def rank(
        self, row: Logits, params: SamplingParams, state: Any, position: int, count: int
    ) -> list[tuple[int, float]]:
        return self._of(state).rank(row, params, state, position, count)

    def open_row(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Logits:
        return self._of(state).open_row(row, params, state, position)

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        return self._gumbel.score(rows, tokens, count)

    def law(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Law:
        return self._of(state).law(row, params, state, position)

    def coin(self, state: Any, position: int, number: int, since: int = 0) -> float:
        return self._of(state).coin(state, position, number, since)

    def _of(self, state: Any) -> Sampler:
        if isinstance(state, ArithmeticState):
            return self._arithmetic
        return self._expansion if isinstance(state, Expansion) else self._gumbel
