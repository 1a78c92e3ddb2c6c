"""What processors and filters cost: time in the sampler as a share of a step, at batch 8.

Theory: a processor touches the ids that it names, and top-p and min-p look at one row's head; all
of it should be small beside a pass that reads every weight. Goal: at most 8 % of a step with
penalties, bias, top-p and min-p on. Two ways of sampling take turns on one engine, plain decoding,
end tokens ignored; figures are medians over steps that read no prompt. A round that gives other
tokens than the first ends the run. Last line: one JSON object.

    .venv/bin/python bench/processing.py [--model M] [--batch 8] [--tokens 48] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

from foreword import LLM, SamplingParams
from foreword.bench.texts import free_prompts
from foreword.protocols import Logits, Sampler
from foreword.types import Choice, Request

GOAL = 0.08
EVERYTHING: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 0.3,
    "frequency_penalty": 0.3,
    "logit_bias": dict.fromkeys(range(1000, 1300), 0.5),
    "top_p": 0.95,
    "min_p": 0.02,
}
WAYS: dict[str, dict[str, Any]] = {"temperature": {}, "everything": EVERYTHING}


class Timed:
    """A sampler that adds up the seconds spent in it."""

    def __init__(self, inner: Sampler) -> None:
        self._inner = inner
        self.seconds = 0.0

    def begin(self, request: Request) -> Any:
        return self._inner.begin(request)

    def choose(self, row: Logits, params: SamplingParams, state: Any, position: int) -> Choice:
        started = time.perf_counter()
        choice = self._inner.choose(row, params, state, position)
        self.seconds += time.perf_counter() - started
        return choice

    def advance(self, row: Logits, state: Any, token: int) -> None:
        started = time.perf_counter()
        self._inner.advance(row, state, token)
        self.seconds += time.perf_counter() - started

    def rank(self, *asked: Any) -> list[tuple[int, float]]:
        return self._inner.rank(*asked)

    def open_row(self, *asked: Any) -> Logits:
        return self._inner.open_row(*asked)


def run(llm: LLM, timed: Timed, prompts: list[str], params: SamplingParams) -> dict[str, Any]:
    """Seconds in the sampler and in all, of each step that reads no prompt; and the ids."""
    samplers, steps = [], []
    original = llm.engine.step

    def step() -> Any:
        decoding = not llm.engine.parts.scheduler.waiting and all(
            sequence.num_output for sequence in llm.engine.parts.scheduler.running
        )
        timed.seconds, started = 0.0, time.perf_counter()
        done = original()
        if decoding and len(done) == len(prompts):
            steps.append(time.perf_counter() - started)
            samplers.append(timed.seconds)
        return done

    llm.engine.step = step  # type: ignore[method-assign]
    try:
        results = llm.generate(prompts, params)
    finally:
        llm.engine.step = original  # type: ignore[method-assign]
    return {
        "sampler": samplers,
        "step": steps,
        "ids": [result.outputs[0].token_ids for result in results],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    llm = LLM(
        options.model,
        speculative_config={"method": "none"},
        max_num_seqs=options.batch,
        max_model_len=1024,
    )
    timed = Timed(llm.engine.parts.sampler)
    llm.engine.parts = replace(llm.engine.parts, sampler=timed)
    texts = free_prompts()
    prompts = [texts[number % len(texts)] for number in range(options.batch)]
    sampler: dict[str, list[float]] = {way: [] for way in WAYS}
    steps: dict[str, list[float]] = {way: [] for way in WAYS}
    seen: dict[str, Any] = {}
    for turn in range(options.rounds + 1):
        for way, fields in WAYS.items():
            params = SamplingParams(
                temperature=0.8, seed=1, max_tokens=options.tokens, ignore_eos=True, **fields
            )
            found = run(llm, timed, prompts, params)
            if seen.setdefault(way, found["ids"]) != found["ids"]:
                sys.exit(f"{way}: other tokens than before, so no figure is reported")
            if turn:  # the first warms up
                sampler[way] += found["sampler"]
                steps[way] += found["step"]
    report: dict[str, Any] = {"model": options.model, "batch": options.batch}
    for way in WAYS:
        inside, whole = statistics.median(sampler[way]), statistics.median(steps[way])
        report[way] = {
            "step_ms": round(whole * 1e3, 3),
            "sampler_ms": round(inside * 1e3, 3),
            "share": round(inside / whole, 4),
        }
        print(f"{way:12} step {whole * 1e3:7.2f} ms   sampler {inside * 1e3:6.3f} ms "
              f"  {inside / whole:6.1%} of it")  # fmt: skip
    share = report["everything"]["share"]
    print(f"goal: at most {GOAL:.0%}: {'met' if share <= GOAL else 'missed'}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
