"""Look closer at one difference: run both sides again and compare their logit rows."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from dataclasses import replace
from typing import Any

from foreword.audit.cases import Case
from foreword.audit.compare import LOGIC, Difference, judge
from foreword.audit.drive import Answer, run_plain, run_setting
from foreword.audit.laboratory import Laboratory
from foreword.audit.settings import Setting
from foreword.protocols import Logits, Sampler
from foreword.sample.law import Law
from foreword.types import Choice, Request, SamplingParams, Sequence, TokenLogprobs


class Recorder:
    """A sampler that keeps the logit row each sequence has at one output position."""

    def __init__(self, inner: Sampler, position: int) -> None:
        self._inner = inner
        self._position = position
        self._states: list[Any] = []  # kept alive: their identity is the key
        self._rows: dict[int, Logits] = {}

    def begin(self, request: Request) -> Any:
        state = self._inner.begin(request)
        self._states.append(state)
        return state

    def choose(
        self,
        row: Logits,
        params: SamplingParams,
        state: Any,
        position: int,
        token: int | None = None,
    ) -> Choice:
        if position == self._position:
            self._rows[id(state)] = row.copy()
        return self._inner.choose(row, params, state, position, token)

    def law(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Law:
        return self._inner.law(row, params, state, position)

    def coin(self, state: Any, position: int, number: int, since: int = 0) -> float:
        return self._inner.coin(state, position, number, since)

    def advance(self, row: Logits, state: Any, token: int) -> None:
        self._inner.advance(row, state, token)

    def rank(
        self, row: Logits, params: SamplingParams, state: Any, position: int, count: int
    ) -> list[tuple[int, float]]:
        return self._inner.rank(row, params, state, position, count)

    def open_row(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Logits:
        return self._inner.open_row(row, params, state, position)

    def score(self, rows: Logits, tokens: SequenceOf[int], count: int) -> list[TokenLogprobs]:
        return self._inner.score(rows, tokens, count)

    def row_of(self, sequence: Sequence) -> Logits | None:
        return self._rows.get(id(sequence.sampler_state))


def diagnose(
    laboratory: Laboratory,
    setting: Setting,
    cases: SequenceOf[Case],
    answer: Answer,
    difference: Difference,
) -> Difference:
    """Run both once more with a recorder at the first difference, and judge by the rows."""
    place = next((i for i, case in enumerate(cases) if case.name == difference.case), None)
    if place is None or difference.what in ("failure", "finish reason"):
        return replace(difference, verdict=LOGIC)
    if difference.what == "prompt logprobs":  # no row of an output position shows it
        return difference
    recorder = Recorder(laboratory.sampler, difference.position)
    alone = run_plain(laboratory, cases[place], recorder)
    reference, row = recorder.row_of(alone.sequences[0]), None
    with suppress(Exception):  # a fault need not repeat itself in the same way
        together = run_setting(laboratory, setting, cases, answer, recorder)
        row = recorder.row_of(together.sequences[place])
    assert laboratory.config.numerics is not None
    verdict, margin, moved = judge(reference, row, laboratory.config.numerics)
    return replace(difference, margin=margin, moved=moved, verdict=verdict)
