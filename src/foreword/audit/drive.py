"""Run cases through an engine the way a setting says: who arrives when, and how urgent they are.

Knows the engine's own verbs (add, step) and nothing of results.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from foreword.audit.cases import Case
from foreword.audit.host import host_settings
from foreword.audit.laboratory import Laboratory
from foreword.audit.settings import Setting
from foreword.engine import Engine
from foreword.protocols import Sampler
from foreword.types import Request, Sequence

URGENT_AFTER = 4  # steps before the second, more urgent half arrives
PLAIN = Setting()

Answer = Callable[[Case], SequenceOf[int]]  # the output ids a case will have


@dataclass(frozen=True, slots=True)
class Run:
    """The sequences of the cases, in their order, and the engine that ran them."""

    engine: Engine
    sequences: list[Sequence]
    num_passes: int


def run_plain(laboratory: Laboratory, case: Case, sampler: Sampler | None = None) -> Run:
    """One request alone, no drafts, a fresh cache."""
    engine = laboratory.engine(PLAIN, laboratory.slots(PLAIN, [case]), sampler=sampler)
    sequences, passes = drive(engine, [(0, case.request("0"))])
    return Run(engine, sequences, passes)


def run_setting(
    laboratory: Laboratory,
    setting: Setting,
    cases: SequenceOf[Case],
    answer: Answer,
    sampler: Sampler | None = None,
) -> Run:
    """All cases together under `setting`; the KV accounting is checked at the end."""
    answers = {str(index): answer(case) for index, case in enumerate(cases)}

    def reference(sequence: Sequence) -> SequenceOf[int]:
        return answers.get(sequence.id.removeprefix("warm "), ())

    with host_settings(setting.host):
        engine = laboratory.engine(setting, laboratory.slots(setting, cases), reference, sampler)
        before = warm_up(engine, setting, cases)
        sequences, passes = drive(engine, schedule(setting, cases))
    engine.parts.kv.check()
    done = {sequence.id: sequence for sequence in sequences}
    return Run(engine, [done[str(index)] for index in range(len(cases))], before + passes)


def schedule(setting: Setting, cases: SequenceOf[Case]) -> list[tuple[int, Request]]:
    """(step of arrival, request), in order of arrival; the id of a request is its case's place."""
    places = range(len(cases))
    timed = []
    for turn, place in enumerate(reversed(places) if setting.arrival == "reversed" else places):
        step = turn if setting.arrival == "staggered" else 0
        priority = 0
        if setting.preemption == "priority":
            priority = -turn
            step += URGENT_AFTER if turn >= len(cases) // 2 else 0
        timed.append((step, cases[place].request(str(place), priority)))
    return timed


def warm_up(engine: Engine, setting: Setting, cases: SequenceOf[Case]) -> int:
    """Fill the prefix cache: with the very prompts, or with prompts that leave them half way.
    Returns the passes it took."""
    if setting.prefix == "cold":
        return 0
    if setting.prefix == "warm":
        first = [replace(case, max_tokens=2) for case in cases]
    else:
        first = [
            replace(case, prompt_ids=case.prompt_ids[: max(1, 2 * len(case.prompt_ids) // 3)])
            for case in cases
        ]
    timed = [(0, case.request(f"{setting.prefix} {i}")) for i, case in enumerate(first)]
    return drive(engine, timed)[1]


def drive(engine: Engine, timed: SequenceOf[tuple[int, Request]]) -> tuple[list[Sequence], int]:
    """Run requests to their end; each enters before the step it is due in. Returns the sequences in
    order of arrival, and the passes."""
    lengths = [len(request.prompt_ids) + request.max_tokens for _, request in timed]
    limit = 100 + 4 * sum(lengths) * len(timed)  # far beyond any honest run
    waiting, step = list(timed), 0
    sequences: list[Sequence] = []
    while waiting or engine.has_work:
        while waiting and step >= waiting[0][0]:
            sequences.append(engine.add(waiting.pop(0)[1]))
        engine.step()
        step += 1
        assert step < limit, f"no end after {step} steps"
    return sequences, step
