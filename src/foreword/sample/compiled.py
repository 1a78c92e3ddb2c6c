"""The chain of sampler.py in compiled code: same bits, one native call for any number of rows.

Everything a row's parameters can ask for is there, so no row takes another path; sampler.py stays
the specification and is what runs where the extension is not built. Knows no addresses: the rows
go to kernels/cpu/sampling.py through a Protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import numpy as np

from foreword.protocols import ALL_MASKED, CompiledRows, Logits, RowAsk
from foreword.sample import logprobs, perturbed
from foreword.sample.sampler import (
    RIVALS,
    GumbelSampler,
    SamplerState,
    bad_row,
    hints,
    temperature_of,
    tidy,
)
from foreword.types import Choice, SamplingParams, TokenLogprobs


class CompiledSampler(GumbelSampler):
    """Implements protocols.Sampler on compiled row operations."""

    def __init__(self, rows: CompiledRows) -> None:
        self.rows = rows

    def choose(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int
    ) -> Choice:
        if state.rules or wants_processed(params):
            return super().choose(row, params, state, position)
        (choice,) = self.choose_rows([(row, params, state, position)])
        if isinstance(choice, Exception):
            raise choice
        return choice

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        for peak in rows.max(axis=1):
            if not math.isfinite(peak):
                raise bad_row(None, all_masked=bool(peak == -np.inf))
        wanted = np.array(tokens, dtype=np.int64)
        return logprobs.of_rows(self.rows, np.require(rows, requirements="C"), wanted, count)

    def choose_rows(
        self, asks: SequenceOf[tuple[Logits, SamplingParams, SamplerState, int]]
    ) -> list[Choice | Exception]:
        found = self.rows.choose([_ask(*ask) for ask in asks])
        choices: list[Choice | Exception] = []
        for (_, params, _, position), (fault, token, logprob, top) in zip(asks, found, strict=True):
            if fault:
                choices.append(bad_row(position, all_masked=fault == ALL_MASKED))
            elif params.logprobs is None:
                choices.append(Choice(token))
            else:
                choices.append(Choice(token, TokenLogprobs(token, logprob, tuple(top))))
        return choices

    def rank(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int, count: int
    ) -> list[tuple[int, float]]:
        temperature = temperature_of(params)
        if state.rules or not 0.0 < temperature <= perturbed.HOTTEST:
            return super().rank(row, params, state, position, count)
        fault, found = self.rows.rank(_ask(row, params, state, position), count + RIVALS)
        if fault:
            raise bad_row(position, all_masked=fault == ALL_MASKED)
        ids = np.array([token for token, _ in found])
        return hints(ids, np.array([score for _, score in found]), temperature, count)


def wants_processed(params: SamplingParams) -> bool:
    """Whether logprobs are asked for that differ from raw ones, where there are no rules."""
    processed = params.logprobs is not None and params.logprobs_mode == "processed"
    return processed and temperature_of(params) > 0.0


def _ask(row: Logits, params: SamplingParams, state: SamplerState, position: int) -> RowAsk:
    assert params.top_k is not None
    assert params.top_p is not None
    assert params.min_p is not None
    return (
        tidy(row),
        temperature_of(params),
        params.top_p,
        params.min_p,
        min(params.top_k, len(row)),
        state.seed,
        position,
        -1 if params.logprobs is None else params.logprobs,
    )
