"""How far a way of accepting is from the model's own distribution, on given prompts.

    visit    plain continuations of the prompts; at positions along them, the exact law
    draw     at each position, the next token under many seeds, from the engine with its drafter
    compare  frequencies against the law: total variation, and chi-square where the law is promised

Exact mode is drawn and compared like the others: a fault of sampling that every run shares, which
comparing runs cannot find, shows here. Then whole texts: speed, likelihood, agreement, a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from foreword.accept._odds import Odds
from foreword.accept._walk import walk
from foreword.audit.chi_square import Fit, expected_variation, goodness, together, visible_variation
from foreword.engine import Engine
from foreword.errors import RequestError
from foreword.llm import LLM
from foreword.protocols import Choose, Logits
from foreword.sample.law import Law
from foreword.sample.noise import derive, request_seed
from foreword.types import DraftTree, Request, SamplingParams, Sequence, Verdict

ALPHA, POWER = 1e-4, 0.99
STRIDE = 8  # tokens between two visited positions, the first of them at the prompt's end

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Mode:
    """One way of accepting. `keeps`: it promises the distribution."""

    name: str
    params: SamplingParams  # resolved
    keeps: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A position of a text, and what plain decoding draws its next token from."""

    prompt_ids: tuple[int, ...]
    law: Law


@dataclass(slots=True)
class Measured:
    """What the draws of one mode look like. `floor`: the mean total variation that so many draws
    from the right law would show. `drafted`: draws at which a draft stood."""

    name: str
    exactness: str
    keeps: bool
    variation: list[float] = field(default_factory=list)  # per place
    floor: list[float] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    drafted: int = 0

    @property
    def whole(self) -> Fit:
        return together(self.fits)

    @property
    def visible(self) -> float:
        """Total variation, the same at all places, from which on a fault is found."""
        return visible_variation(self.whole.num_draws, self.whole.freedom, ALPHA / 2, POWER)

    @property
    def fits_law(self) -> bool:
        """Neither all places together nor one alone is too far off; `ALPHA` for both questions."""
        worst = min((fit.p_value for fit in self.fits), default=1.0)
        return self.whole.p_value >= ALPHA / 2 and worst * len(self.fits) >= ALPHA / 2


class Recorder:
    """Exact acceptance that notes the law of each emitted token."""

    name = "recorder"
    exactness = "exact"
    draws = False

    def __init__(self, odds: Odds) -> None:
        self._odds = odds
        self.laws: list[Law] = []

    def accept(self, tree: DraftTree, rows: Logits, choose: Choose) -> Verdict:
        def pick(node: int) -> None:
            self.laws.append(self._odds.law(rows[node]))

        return walk(tree, rows, choose, pick)


def visit(
    llm: LLM, prompts: SequenceOf[SequenceOf[int]], params: SamplingParams, each: int, seed: int
) -> list[Place]:
    """Up to `each` places on the plain continuation of each prompt (ids), fewer where it ends."""
    engine, places = llm.engine, []
    for number, prompt in enumerate(prompts):
        length = min((each - 1) * STRIDE + 1, llm.built.context - len(prompt) - 1)
        request = Request(
            f"visit-{number}",
            tuple(prompt),
            params,
            request_seed(seed, number),
            eos_ids=llm.built.checkpoint.eos_ids,
            max_tokens=length,
        )
        sequence = engine.add(request)
        recorder = sequence.acceptor = Recorder(Odds(engine.parts.sampler, sequence))
        for _ in _running(engine, [sequence]):
            pass
        for at in range(0, len(recorder.laws), STRIDE):
            ids = tuple(sequence.token_ids[: len(prompt) + at])
            places.append(Place(ids, recorder.laws[at]))
    return places


def measure(
    llm: LLM,
    places: SequenceOf[Place],
    mode: Mode,
    draws: int,
    seed: int,
    progress: Progress | None = None,
) -> Measured:
    """`draws` next tokens at each place, each of a request of its own with its own seed."""
    found = Measured(mode.name, "exact", mode.keeps)
    for number, place in enumerate(places):
        counts = np.zeros(len(place.law.chances), dtype=np.int64)
        base = request_seed(seed, number)
        room = llm.built.context - len(place.prompt_ids)
        depth = min(llm.built.config.speculative.num_speculative_tokens, room - 1)
        requests = [
            Request(f"{number}/{i}", place.prompt_ids, mode.params, derive(base, i),
                    eos_ids=llm.built.checkpoint.eos_ids, max_tokens=1 + depth)
            for i in range(draws)
        ]  # fmt: skip
        sequences = [llm.engine.add(request) for request in requests]
        try:
            for sequence in _running(llm.engine, sequences):
                if sequence.error is not None:
                    raise sequence.error
                counts[sequence.token_ids[len(place.prompt_ids)]] += 1
                found.drafted += sequence.stats.num_drafted > 0
                llm.engine.abort(sequence)  # one token is all that is wanted
        finally:
            for sequence in sequences:
                llm.engine.abort(sequence)
        found.exactness = sequences[0].exactness
        _enter(found, counts, place.law.chances / place.law.chances.sum())
        if progress is not None:
            progress(f"drawing {mode.name}", number + 1, len(places))
    return found


def _enter(
    found: Measured, counts: npt.NDArray[np.int64], chances: npt.NDArray[np.float64]
) -> None:
    draws = int(counts.sum())
    found.variation.append(0.5 * float(np.abs(counts / draws - chances).sum()))
    found.floor.append(expected_variation(draws, chances))
    found.fits.append(goodness(counts, chances))


def _running(engine: Engine, sequences: SequenceOf[Sequence]) -> Iterator[Sequence]:
    """Step until all have left; yields those that have emitted or ended, after each step."""
    names = {sequence.id for sequence in sequences}
    while engine.has_work:
        for sequence in engine.step():
            if sequence.id in names and (sequence.num_output or sequence.error is not None):
                yield sequence


Scorer = Callable[[str, str], float]  # (prompt, output text) -> a number, higher is better


@dataclass(frozen=True, slots=True)
class Texts:
    """Whole texts of one mode: means over texts, and differences to exact mode with their standard
    errors, text by text."""

    name: str
    num_texts: int
    acceptance_length: float  # tokens for each verify pass
    agreement: float  # leading tokens that are those of exact mode with the same seed, a share
    logprob: float  # mean log-probability of a token, by the model itself
    logprob_difference: float
    logprob_error: float
    score: float | None = None
    score_difference: float | None = None
    score_error: float | None = None


def write(
    llm: LLM,
    prompts: SequenceOf[str],
    modes: SequenceOf[Mode],
    samples: int,
    max_tokens: int,
    seed: int,
    scorer: Scorer | None = None,
) -> list[Texts]:
    """`samples` texts of each prompt in each mode; the first mode is what others are held to."""
    numbers = [(prompt, i) for prompt in range(len(prompts)) for i in range(samples)]
    asked = [prompts[prompt] for prompt, _ in numbers]
    reports: list[Texts] = []
    first: dict[str, Any] = {}
    for mode in modes:
        params = [
            replace(mode.params, seed=derive(request_seed(seed, prompt), i), max_tokens=max_tokens,
                    logprobs=0, ignore_eos=False)
            for prompt, i in numbers
        ]  # fmt: skip
        outputs = [result.outputs[0] for result in llm.generate(asked, params)]
        for output in outputs:
            if output.error is not None:
                raise RequestError(f"{mode.name}: {output.error}", "acceptance")
        ids = [output.token_ids for output in outputs]
        likely = np.array([(one.cumulative_logprob or 0.0) / len(one.token_ids) for one in outputs])
        speed = [one.metrics["speculative_decoding"] for one in outputs]
        scores = None
        if scorer is not None:
            pairs = zip(asked, outputs, strict=True)
            scores = np.array([float(scorer(prompt, one.text)) for prompt, one in pairs])
        first = first or {"ids": ids, "likely": likely, "scores": scores}
        difference, error = _paired(likely, first["likely"])
        gained = None if scores is None else _paired(scores, first["scores"])
        reports.append(
            Texts(
                mode.name,
                len(outputs),
                sum(map(len, ids)) / max(1, sum(one["num_spec_steps"] for one in speed)),
                float(np.mean([_same(a, b) for a, b in zip(ids, first["ids"], strict=True)])),
                float(likely.mean()),
                difference,
                error,
                None if scores is None else float(scores.mean()),
                *(gained or (None, None)),
            )
        )
    return reports


def _same(left: SequenceOf[int], right: SequenceOf[int]) -> float:
    """The share of leading tokens that are equal."""
    longest = max(len(left), len(right))
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right))) / longest


def _paired(values: Any, others: Any) -> tuple[float, float]:
    """Mean difference and its standard error."""
    gaps = values - others
    error = float(gaps.std(ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else float("nan")
    return float(gaps.mean()), error
