"""The audit itself: every case alone and plain, then under every setting, compared bit for bit.

Knows engines through the laboratory, and requests as cases; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from foreword.audit.cases import Case
from foreword.audit.compare import LOGIC, Difference, Result, first_difference
from foreword.audit.diagnose import diagnose
from foreword.audit.drive import run_plain, run_setting
from foreword.audit.laboratory import Laboratory
from foreword.audit.settings import Setting
from foreword.audit.streams import stream_faults

DIAGNOSED = 3  # differences looked at closely; the others are listed
SPARE = 2  # requests beyond the batch size, so that seats change hands

Step = Callable[[str, int, int], None]  # (what, done, total)


@dataclass(slots=True)
class Report:
    """What was covered, and what differed. Counts are of what was compared, not of what ran."""

    num_cases: int = 0
    num_settings: int = 0
    num_outputs: int = 0
    num_positions: int = 0
    num_logprobs: int = 0
    num_passes: int = 0
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
    """stop_early: stop at the first setting that differs."""
    report = Report()
    report.faults = stream_faults(laboratory.sampler, laboratory.vocab_size, cases[0].seed)
    known = references(laboratory, cases, progress)
    report.num_cases = len(known)

    def answer(case: Case) -> SequenceOf[int]:
        return known[case].token_ids

    for place, setting in enumerate(settings):
        chosen = window(list(known), place, setting.batch + SPARE)
        found = compare_setting(laboratory, setting, chosen, known, report)
        for difference in found:
            if len(report.differences) < DIAGNOSED:
                difference = diagnose(laboratory, setting, chosen, answer, difference)
            report.differences.append(difference)
        if stop_early and not report.identical:
            break
        if progress is not None:
            progress("comparing", place + 1, len(settings))
    return report


def references(
    laboratory: Laboratory, cases: SequenceOf[Case], progress: Step | None = None
) -> dict[Case, Result]:
    """Each case alone with plain decoding; and of every third one a case that ends half way."""
    known: dict[Case, Result] = {}
    for number, case in enumerate(cases):
        known[case] = result = plain_result(laboratory, case)
        if number % 3 == 0 and len(result.token_ids) > 1:
            ending = case.ending_at(result.token_ids[len(result.token_ids) // 2])
            known[ending] = plain_result(laboratory, ending)
        if progress is not None:
            progress("plain decoding", number + 1, len(cases))
    return known


def plain_result(laboratory: Laboratory, case: Case) -> Result:
    return Result.of(run_plain(laboratory, case).sequences[0])


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
        run = run_setting(laboratory, setting, cases, lambda case: known[case].token_ids)
    except Exception as error:  # whatever an engine raises here is a finding
        text = f"{type(error).__name__}: {error}"
        failure = ("all cases", str(setting), 0, "failure", "an answer", text)
        return [Difference(*failure, verdict=LOGIC)]
    engine = run.engine
    report.num_passes += run.num_passes
    report.num_drafted += engine.stats.num_drafted
    report.num_accepted += engine.stats.num_accepted
    report.num_preemptions += engine.parts.scheduler.num_preemptions
    report.num_prefix_hits += getattr(engine.parts.kv, "prefix_hits", 0)
    differences = []
    for case, sequence in zip(cases, run.sequences, strict=True):
        expected, got = known[case], Result.of(sequence)
        report.num_outputs += 1
        report.num_positions += len(expected.token_ids)
        report.num_logprobs += expected.num_logprobs
        found = first_difference(expected, got)
        if found is not None:
            differences.append(Difference(case.name, str(setting), *found))
    return differences
