"""What drafting brings on this machine and these prompts, and the options that follow from it.

For each concurrency the prompts are run in batches of that many, plain and with drafts by turns.
Predicted is what the engine itself expected before every pass: its calibrated chances and its cost
curve, over all steps. Measured is what happened in the same steps. Where the two agree, the engine
spends its rows well; where drafting does not pay, as a mean over the concurrencies, the
recommendation leaves it out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.bench.rounds import Progress
from foreword.bench.sides import Log, Sides
from foreword.errors import ForewordError
from foreword.llm import LLM
from foreword.pace import MeasuredPace
from foreword.types import SamplingParams

CONCURRENCIES = (1, 4, 8, 16)
WIDTHS = (1, 2, 4, 8, 16, 17, 24, 32, 33, 48, 64)
WORTH = 1.02  # mean speed-up below which drafting is not recommended


@dataclass(slots=True)
class Speed:
    """Tokens per second of all requests together, prompts not counted."""

    predicted: float
    measured: float
    acceptance_length: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1.0


@dataclass(slots=True)
class Plan:
    """curve: (rows, seconds). sources: name -> (drafted, accepted). speeds: concurrency -> (plain,
    with drafts)."""

    curve: list[tuple[int, float]]
    overhead: float
    sources: dict[str, tuple[int, int]] = field(default_factory=dict)
    speeds: dict[int, tuple[Speed, Speed]] = field(default_factory=dict)

    def recommended(self, llm: LLM) -> dict[str, object]:
        """Options by name, for --config."""
        plan = llm.built.config.speculative
        ratios = [drafts.measured / plain.measured for plain, drafts in self.speeds.values()]
        pays = math.prod(ratios) >= WORTH ** len(ratios)  # their geometric mean
        best = max(self.speeds, key=lambda width: self.speeds[width][pays].measured)
        if not pays:
            return {"drafter": "none", "max-num-seqs": best}
        options: dict[str, object] = {"drafter": plan.method, "tree": plan.tree}
        if plan.model is not None:
            options["draft-model"] = plan.model
        options["num-speculative-tokens"] = plan.num_speculative_tokens
        if not plan.learning:
            options["no-draft-learning"] = True
        if plan.options:
            options["speculative-config"] = json.dumps(plan.options)
        return {**options, "max-num-seqs": best}


def measure(
    llm: LLM,
    prompts: Sequence[list[int]],
    max_tokens: int,
    temperature: float,
    concurrencies: Sequence[int] = CONCURRENCIES,
    progress: Progress | None = None,
) -> Plan:
    """`llm` is loaded with the drafting to plan for, without prefix caching, and with room for the
    largest concurrency. ForewordError when the two sides differ in a token."""
    pace = llm.engine.parts.pace
    assert isinstance(pace, MeasuredPace), "the door checks that costs are measured"
    sides = Sides(llm)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=0)
    found = Plan([], 0.0)
    for number, width in enumerate(concurrencies):
        if progress is not None:
            progress("planning", number, len(concurrencies))
        sides.forget()
        logs: dict[bool, list[Log]] = {False: [], True: []}
        batches = [prompts[at : at + width] for at in range(0, len(prompts), width)]
        for place, batch in enumerate(batches):
            outputs = {}
            for drafts in (False, True) if place % 2 == 0 else (True, False):
                with sides.run(drafts) as log:
                    results = llm.generate([list(ids) for ids in batch], params)
                outputs[drafts] = [one.outputs[0].token_ids for one in results]
                logs[drafts].append(log)
            if outputs[False] != outputs[True]:
                raise ForewordError(
                    "drafting gave other tokens than plain decoding, so nothing is planned; run "
                    "`foreword audit` on this model"
                )
        found.speeds[width] = _speed(logs[False]), _speed(logs[True])
        for log in logs[True]:
            for name, count in log.drafted.items():
                drafted, accepted = found.sources.get(name, (0, 0))
                found.sources[name] = drafted + count, accepted + log.accepted.get(name, 0)
    table = pace.curve.table(max(WIDTHS))
    found.curve = [(rows, pace.curve.level * table[rows]) for rows in WIDTHS]
    found.overhead = pace.overhead
    return found


def _speed(logs: Sequence[Log]) -> Speed:
    steps = [step for log in logs for step in log.steps]
    around = sorted(step.around for step in steps)[len(steps) // 2]
    seconds = sum(step.said + around for step in steps)
    tokens = sum(log.tokens for log in logs)
    return Speed(
        predicted=sum(step.expected for step in steps) / seconds,
        measured=tokens / sum(log.seconds for log in logs),
        acceptance_length=tokens / sum(step.sequences for step in steps),
    )
