"""The audit itself: every case alone and plain, then under every setting, compared bit for bit.

Knows engines through the laboratory, and requests as cases; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.audit.cases import Case
from foreword.audit.compare import LOGIC, Difference, Result, first_difference, judge
from foreword.audit.host import host_settings
from foreword.audit.laboratory import Laboratory
from foreword.audit.settings import Setting
from foreword.audit.streams import stream_faults
from foreword.engine import Engine
from foreword.errors import ForewordError
from foreword.protocols import Logits, Sampler
from foreword.types import Choice, Request, SamplingParams, Sequence

PLAIN = Setting()
DIAGNOSED = 5  # differences looked at closely; the others are counted and listed
SPARE = 3  # requests beyond the batch size, so that seats change hands
URGENT_AFTER = 4  # steps before the second, more urgent half arrives

Step = Callable[[str, int, int], None]  # (what, done, total)


@dataclass(slots=True)
class Report:
    """What was covered, and what differed. Counts are of what was compared, not of what ran."""

    num_cases: int = 0
    num_settings: int = 0
    num_outputs: int = 0
    num_positions: int = 0
    num_logprobs: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_preemptions: int = 0
    num_prefix_hits: int = 0  # tokens found in a prefix cache
    faults: list[str] = field(default_factory=list)  # of the random streams
    differences: list[Difference] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return not self.differences and not self.faults


def audit(
    laboratory: Laboratory,
    cases: SequenceOf[Case],
    settings: SequenceOf[Setting],
    *,
    stop_early: bool = False,
    progress: Step | None = None,
) -> Report:
    """stop_early: stop at the first setting that differs, without diagnosis."""
    report = Report()
    report.faults = stream_faults(laboratory.sampler, laboratory.vocab_size, cases[0].seed)
    known = references(laboratory, cases, progress)
    report.num_cases = len(known)
    for place, setting in enumerate(settings):
        chosen = window(list(known), place, setting.batch + SPARE)
        found = compare_setting(laboratory, setting, chosen, known, report)
        if stop_early and (found or report.faults):
            report.differences += found
            break
        for difference in found:
            if len(report.differences) < DIAGNOSED:
                difference = diagnose(laboratory, setting, chosen, known, difference)
            report.differences.append(difference)
        if progress is not None:
            progress("comparing", place + 1, len(settings))
    return report


def references(
    laboratory: Laboratory, cases: SequenceOf[Case], progress: Step | None = None
) -> dict[Case, Result]:
    """Each case alone with plain decoding; and of every third one a case that ends half way."""
    known: dict[Case, Result] = {}
    for number, case in enumerate(cases):
        known[case] = result = Result.of(run_plain(laboratory, case))
        if number % 3 == 0 and len(result.token_ids) > 1:
            ending = case.ending_at(result.token_ids[len(result.token_ids) // 2])
            known[ending] = Result.of(run_plain(laboratory, ending))
        if progress is not None:
            progress("plain decoding", number + 1, len(cases))
    return known


def run_plain(laboratory: Laboratory, case: Case, sampler: Sampler | None = None) -> Sequence:
    """One request alone, no drafts, a fresh cache."""
    engine = laboratory.engine(PLAIN, laboratory.slots(PLAIN, [case]), sampler=sampler)
    return drive(engine, [(0, case.request("0"))])[0]


def window(cases: list[Case], place: int, count: int) -> list[Case]:
    """`count` cases for setting number `place`: the next ones, round and round."""
    count = min(count, len(cases))
    return [cases[(place * count + index) % len(cases)] for index in range(count)]


def compare_setting(
    laboratory: Laboratory,
    setting: Setting,
    cases: SequenceOf[Case],
    known: Mapping[Case, Result],
    report: Report,
) -> list[Difference]:
    """Run `cases` together under `setting`; adds to the report's counts."""
    report.num_settings += 1
    try:
        engine, sequences = run_setting(laboratory, setting, cases, known)
    except (AssertionError, ForewordError, RuntimeError, FloatingPointError) as error:
        text = f"{type(error).__name__}: {error}"
        return [Difference("all cases", str(setting), 0, "failure", "an answer", text)]
    report.num_drafted += engine.stats.num_drafted
    report.num_accepted += engine.stats.num_accepted
    report.num_preemptions += engine.parts.scheduler.num_preemptions
    report.num_prefix_hits += getattr(engine.parts.kv, "prefix_hits", 0)
    differences = []
    for case, sequence in zip(cases, sequences, strict=True):
        expected, got = known[case], Result.of(sequence)
        report.num_outputs += 1
        report.num_positions += len(expected.token_ids)
        report.num_logprobs += expected.num_logprobs
        found = first_difference(expected, got)
        if found is not None:
            differences.append(Difference(case.name, str(setting), *found))
    return differences


def run_setting(
    laboratory: Laboratory,
    setting: Setting,
    cases: SequenceOf[Case],
    known: Mapping[Case, Result],
    sampler: Sampler | None = None,
) -> tuple[Engine, list[Sequence]]:
    """The sequences of `cases`, in their order, and the engine that ran them."""
    answers = {str(index): known[case].token_ids for index, case in enumerate(cases)}

    def answer(sequence: Sequence) -> SequenceOf[int]:
        return answers.get(sequence.id.removeprefix("warm "), ())

    with host_settings(setting.host):
        engine = laboratory.engine(setting, laboratory.slots(setting, cases), answer, sampler)
        warm_up(engine, setting, cases)
        timed = schedule(setting, cases)
        done = {sequence.id: sequence for sequence in drive(engine, timed)}
    engine.parts.kv.check()
    return engine, [done[str(index)] for index in range(len(cases))]


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


def warm_up(engine: Engine, setting: Setting, cases: SequenceOf[Case]) -> None:
    """Fill the prefix cache: with the very prompts, or with prompts that leave them half way."""
    if setting.prefix == "warm":
        again = [replace(case, max_tokens=2) for case in cases]
        drive(engine, [(0, case.request(f"warm {i}")) for i, case in enumerate(again)])
    elif setting.prefix == "shared":
        cut = [
            replace(case, prompt_ids=case.prompt_ids[: max(1, 2 * len(case.prompt_ids) // 3)])
            for case in cases
        ]
        drive(engine, [(0, case.request(f"cut {i}")) for i, case in enumerate(cut)])


def drive(engine: Engine, timed: SequenceOf[tuple[int, Request]]) -> list[Sequence]:
    """Run requests to their end; each enters before the step it is due in."""
    lengths = [len(request.prompt_ids) + request.max_tokens for _, request in timed]
    limit = 100 + 4 * sum(lengths) * len(timed)  # far beyond any honest run
    waiting, sequences, step = list(timed), [], 0
    while waiting or engine.has_work:
        while waiting and step >= waiting[0][0]:
            sequences.append(engine.add(waiting.pop(0)[1]))
        engine.step()
        step += 1
        assert step < limit, f"no end after {step} steps"
    return sequences


class Recorder:
    """A sampler that keeps the logit row each sequence has at one output position."""

    def __init__(self, inner: Sampler, position: int) -> None:
        self._inner = inner
        self._position = position
        self._states: list[Any] = []  # kept alive: their identity is the key
        self._rows: dict[int, Logits] = {}

    def begin(self, params: SamplingParams, seed: int, prompt_ids: SequenceOf[int]) -> Any:
        state = self._inner.begin(params, seed, prompt_ids)
        self._states.append(state)
        return state

    def choose(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Choice:
        if position == self._position:
            self._rows[id(state)] = row.copy()
        return self._inner.choose(row, params, state, position)

    def rank(
        self, row: Logits, params: SamplingParams, state: Any, position: int, count: int
    ) -> list[tuple[int, float]]:
        return self._inner.rank(row, params, state, position, count)

    def row_of(self, sequence: Sequence) -> Logits | None:
        return self._rows.get(id(sequence.sampler_state))


def diagnose(
    laboratory: Laboratory,
    setting: Setting,
    cases: SequenceOf[Case],
    known: Mapping[Case, Result],
    difference: Difference,
) -> Difference:
    """Run both once more with a recorder at the first difference, and judge by the rows."""
    place = next((i for i, case in enumerate(cases) if case.name == difference.case), None)
    if place is None or difference.what in ("failure", "finish reason"):
        return replace(difference, verdict=LOGIC)
    recorder = Recorder(laboratory.sampler, difference.position)
    alone = run_plain(laboratory, cases[place], recorder)
    reference = recorder.row_of(alone)
    _, sequences = run_setting(laboratory, setting, cases, known, recorder)
    row = recorder.row_of(sequences[place])
    verdict, margin, moved = judge(reference, row, laboratory.config.numerics)
    return replace(difference, margin=margin, moved=moved, verdict=verdict)
