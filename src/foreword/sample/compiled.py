"""The chain of sampler.py in compiled code: same bits, one native call for any number of rows.

Everything a row's parameters can ask for is there, so no row takes another path: what is Python by
nature, user-supplied processors and grammars, changes a copy of the row first. sampler.py stays the
specification and is what runs where the extension is not built. Knows no addresses: the rows go to
kernels/cpu/sampling.py through a Protocol.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf

import numpy as np

from foreword.protocols import ALL_MASKED, NON_FINITE, CompiledRows, Edit, Logits, RowAsk
from foreword.sample import logprobs, perturbed
from foreword.sample.edits import EditRule
from foreword.sample.filters import Row
from foreword.sample.mirostat import Mirostat
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
        self,
        row: Logits,
        params: SamplingParams,
        state: SamplerState,
        position: int,
        token: int | None = None,
    ) -> Choice:
        wants_processed = params.logprobs is not None and params.logprobs_mode != "raw"
        if wants_processed or token is not None:
            return super().choose(row, params, state, position, token)
        (choice,) = self.choose_rows([(row, params, state, position)])
        if isinstance(choice, Exception):
            raise choice
        return choice

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        for peak in rows.max(axis=1):
            if not math.isfinite(peak):
                raise bad_row(None, ALL_MASKED if peak == -np.inf else NON_FINITE)
        wanted = np.array(tokens, dtype=np.int64)
        return logprobs.of_rows(self.rows, np.require(rows, requirements="C"), wanted, count)

    def choose_rows(
        self, asks: SequenceOf[tuple[Logits, SamplingParams, SamplerState, int]]
    ) -> list[Choice | Exception]:
        found = self.rows.choose([_ask(*ask) for ask in asks])
        choices: list[Choice | Exception] = []
        for (_, params, _, position), (fault, token, logprob, top) in zip(asks, found, strict=True):
            if fault:
                choices.append(bad_row(position, fault))
            elif params.logprobs is None:
                choices.append(Choice(token))
            else:
                choices.append(Choice(token, TokenLogprobs(token, logprob, tuple(top))))
        return choices

    def rank(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int, count: int
    ) -> list[tuple[int, float]]:
        temperature = temperature_of(params)
        if not 0.0 < temperature <= perturbed.HOTTEST:
            return super().rank(row, params, state, position, count)
        ask = _ask(row, params, state, position, guess=True)
        fault, found = self.rows.rank(ask, count + RIVALS)
        if fault:
            raise bad_row(position, fault)
        ids = np.array([token for token, _ in found])
        return hints(ids, np.array([score for _, score in found]), temperature, count)

    def open_row(
        self, row: Logits, params: SamplingParams, state: SamplerState, position: int
    ) -> Row:
        fault, found = self.rows.open_row(_ask(row, params, state, position))
        if fault:
            raise bad_row(position, fault)
        return found

    def surprise(self, row: Logits, state: SamplerState, steered: Mirostat, token: int) -> float:
        raw = tidy(row)
        changed, edits = _changes(raw, state, steered.position, guess=False)
        ask = RowAsk(
            changed,
            raw,
            state.seed,
            steered.position,
            steered.temperature,
            mu=steered.mu,
            edits=edits,
        )
        fault, bits = self.rows.surprise(ask, token)
        if fault:
            raise bad_row(steered.position, fault)
        return bits


def _ask(
    row: Logits, params: SamplingParams, state: SamplerState, position: int, guess: bool = False
) -> RowAsk:
    """guess: without the user-supplied processors."""
    assert params.top_k is not None
    assert params.top_p is not None
    assert params.min_p is not None
    raw = tidy(row)
    changed, edits = _changes(raw, state, position, guess)
    return RowAsk(
        changed,
        raw,
        state.seed,
        position,
        temperature_of(params),
        min(params.top_k, len(row)),
        params.top_p,
        params.min_p,
        1.0 if params.typical_p is None else params.typical_p,
        params.xtc_probability,
        params.xtc_threshold,
        float("inf") if state.mirostat is None else state.mirostat.mu,
        -1 if params.logprobs is None else params.logprobs,
        edits,
    )


def _changes(
    raw: Row, state: SamplerState, position: int, guess: bool
) -> tuple[Row, tuple[Edit, ...]]:
    """The row after what is Python by nature, and the edits that follow. A row that cannot be
    sampled from is not shown to anyone: the native chain finds its fault."""
    row = raw
    if state.user is not None and not guess and np.isfinite(raw.max()):
        row = state.user.answer(raw, position)
    if not state.rules:
        return row, ()
    edits = []
    for rule in state.rules:
        if isinstance(rule, EditRule):
            edit = rule.edit(position)
            if edit is not None:
                edits.append(edit)
        else:
            assert not edits, "rules_of: edits come last"
            row = row.copy() if row is raw else row
            rule.apply(row, position)
    return row, tuple(edits)
