"""`foreword bench decode`: what a user of the engine gets, plain decoding without drafts.

Greedy, end tokens ignored. Prompts are read before the clock starts: a decode figure is the time
from the first new token to the last, over their number. Every repetition must give the same ids as
the first; a difference ends the run, since a figure of a wrong answer is worth nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count

import numpy as np

from foreword.bench.report import Rates, Report, make_report
from foreword.bench.rounds import Case, Progress, interleave
from foreword.bench.session import Session
from foreword.bench.texts import free_prompts
from foreword.errors import ForewordError
from foreword.llm import LLM
from foreword.outputs import CompletionOutput
from foreword.types import SamplingParams


class Runs:
    """Runs prompts of token ids through an engine and remembers what came out."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._seen: dict[tuple[tuple[int, ...], ...], list[list[int]]] = {}
        self._fresh = count()

    def step_seconds(self, prompts: Sequence[Sequence[int]], tokens: int) -> float:
        """Seconds between one new token and the next, all prompts as one batch."""
        outputs = self._generate(prompts, tokens)
        rates = [output.metrics["tokens_per_second"] for output in outputs]
        return len(prompts) / float(sum(rates))

    def prefill_seconds(self, length: int) -> float:
        """Seconds to the first new token after a prompt of `length` that was never seen before."""
        prompt = fresh_prompt(self.llm, next(self._fresh), length)
        (output,) = self._generate([prompt], 1)
        return float(output.metrics["time_to_first_token_ms"]) / 1e3

    def ids(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """What these prompts gave."""
        return self._seen[_key(prompts)]

    def _generate(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[CompletionOutput]:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        results = self.llm.generate([list(prompt) for prompt in prompts], params)
        outputs = [result.outputs[0] for result in results]
        for output in outputs:
            if output.error is not None:
                raise ForewordError(f"a measured request failed: {output.error}")
        found = [output.token_ids for output in outputs]
        if self._seen.setdefault(_key(prompts), found) != found:
            raise ForewordError(
                "the same prompts gave other tokens than before, so no figure is reported; "
                "run `foreword audit` on this model"
            )
        return outputs


def _key(prompts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(prompt) for prompt in prompts)


def fresh_prompt(llm: LLM, number: int, length: int) -> list[int]:
    """Token ids that share no prefix with those of another number."""
    found: list[int] = (
        np.random.default_rng(number).integers(0, llm.built.vocab_size, length).tolist()
    )
    return found


def prompt_of(session: Session, length: int) -> list[int]:
    """Token ids to decode after; the same for every engine that is compared."""
    return fresh_prompt(session.llm, 1_000_000 + length, length)


def batch_prompts(session: Session) -> list[list[int]]:
    """The `free` prompts as token ids, as many as the batch has."""
    batch = session.scale.batch or 0
    ids = [session.llm.tokenizer.encode(text) for text in free_prompts()[:batch]]
    return [one[: session.scale.batch_context] for one in ids]


def engine_cases(session: Session, runs: Runs) -> dict[str, Case]:
    """Decoding at every context, a prompt and the batch."""
    scale = session.scale
    cases: dict[str, Case] = {}
    for context in (0, *scale.contexts):
        prompt = prompt_of(session, max(1, context))
        cases[f"decode {context}"] = partial(runs.step_seconds, [prompt], scale.new_tokens)
    if scale.prompt is not None:
        cases["prefill"] = partial(runs.prefill_seconds, scale.prompt)
    if scale.batch is not None:
        prompts = batch_prompts(session)
        cases["batch"] = partial(runs.step_seconds, prompts, scale.new_tokens)
    return cases


def measure(session: Session, rounds: int, progress: Progress | None = None) -> Report:
    """Time reading, widths, and the engine's decoding, prompt and batch, round by round."""
    runs = Runs(session.llm)
    cases = session.forward_cases() | engine_cases(session, runs)
    middle = session.scale.new_tokens // 2
    cases["forward"] = partial(session.passes.decode, middle)
    samples = interleave(cases, rounds, progress)
    return make_report(
        session,
        samples,
        Rates(
            decode={
                context: samples[f"decode {context}"] for context in (0, *session.scale.contexts)
            },
            prefill=samples.get("prefill"),
            batch=samples.get("batch"),
            forward=samples["forward"],
            grown=middle,
        ),
    )
