"""Speed of drafting over plain decoding of the same engine: interleaved pairs, per prompt group.

Theory: a step of n draft nodes costs c(1 + n) / c(1) of a plain step and brings as many tokens as
are accepted, and one; the ratio is what a user sees. Both run on one loaded model, in turns
(plain, drafting, drafting, plain, ...), so that what else the machine does hits both. A pair is one
batch of `concurrency` prompts run to the end; ratios are sums of seconds over all pairs, bounds are
95 % bootstrap intervals over the pairs. Every round starts with an engine that has learned nothing;
within a round it may learn from one batch for the next. Tokens are compared: a difference ends
the run. Last line: one JSON object.

    .venv/bin/python bench/speedup.py [--model M] [--groups qa,edit] [--concurrency 1,8]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword import LLM, SamplingParams
from foreword.bench.sides import Sides

DATA = Path(__file__).parent / "data"
FILES = ("spec_bench_10.jsonl", "edit.jsonl")
RESAMPLES = 2000


@dataclass(frozen=True)
class Pair:
    """One batch, run both ways."""

    plain: float  # seconds
    drafting: float
    tokens: int
    steps: int  # verify passes of the drafting run, summed over its sequences


def prompts() -> dict[str, list[str]]:
    """First turns by group."""
    found: dict[str, list[str]] = {}
    for name in FILES:
        for line in (DATA / name).read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            found.setdefault(one.get("group") or one["category"], []).append(one["turns"][0])
    return found


def timed(llm: LLM, batch: list[str], params: SamplingParams) -> tuple[float, list[Any]]:
    talks = [[{"role": "user", "content": text}] for text in batch]
    started = time.perf_counter()
    answers = llm.chat(talks, params)
    return time.perf_counter() - started, [answer.outputs[0] for answer in answers]


def pair(llm: LLM, sides: Sides, batch: list[str], params: SamplingParams, flip: bool) -> Pair:
    runs = {}
    for drafts in (True, False) if flip else (False, True):
        with sides.run(drafts):
            runs[drafts] = timed(llm, batch, params)
    for one, other in zip(runs[False][1], runs[True][1], strict=True):
        if one.token_ids != other.token_ids:
            sys.exit("tokens differ from plain decoding: no figure is reported")
    counts = [one.metrics["speculative_decoding"] for one in runs[True][1]]
    tokens = sum(len(one.token_ids) for one in runs[False][1])
    steps = sum(count["num_spec_steps"] for count in counts)
    return Pair(runs[False][0], runs[True][0], tokens, steps)


def ratio(pairs: list[Pair]) -> float:
    return sum(one.plain for one in pairs) / sum(one.drafting for one in pairs)


def bounds(pairs: list[Pair]) -> tuple[float, float]:
    """95 % of the ratios of resampled pairs."""
    chance = random.Random(0)
    found = sorted(ratio(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return found[RESAMPLES // 40], found[-RESAMPLES // 40 - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--speculative-config", default="{}", help="JSON; default: the default")
    parser.add_argument("--groups", help="names, separated by commas; default: all")
    parser.add_argument("--concurrency", default="1")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=10, help="of each group at most")
    options = parser.parse_args()

    every = prompts()
    groups = options.groups.split(",") if options.groups else list(every)
    widths = [int(width) for width in options.concurrency.split(",")]
    speculative = json.loads(options.speculative_config)
    params = SamplingParams(temperature=options.temperature, seed=7, max_tokens=options.max_tokens)
    llm = LLM(
        options.model,
        speculative_config=speculative,
        max_model_len=2048,
        max_num_seqs=max(widths),
        enable_prefix_caching=False,
    )
    sides = Sides(llm)
    report: dict[str, Any] = {}
    for width in widths:
        for group in groups:
            chosen = every[group][: max(options.prompts, width)]
            batches = [chosen[at : at + width] for at in range(0, len(chosen), width)]
            pairs: list[Pair] = []
            for turn in range(options.rounds):
                sides.forget()
                for number, batch in enumerate(batches):
                    flip = (turn + number) % 2 == 1
                    pairs.append(pair(llm, sides, batch, params, flip))
            low, high = bounds(pairs)
            tokens = sum(one.tokens for one in pairs)
            entry = {
                "ratio": round(ratio(pairs), 3),
                "low": round(low, 3),
                "high": round(high, 3),
                "acceptance_length": round(tokens / sum(one.steps for one in pairs), 3),
                "plain_tokens_per_s": round(tokens / sum(one.plain for one in pairs), 1),
                "tokens_per_s": round(tokens / sum(one.drafting for one in pairs), 1),
                "pairs": len(pairs),
            }
            report[f"{group} x{width}"] = entry
            print(f"{group:16} x{width:<3} {entry}", flush=True)
    llm.close()
    setting = {
        "model": options.model,
        "speculative_config": speculative,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "rounds": options.rounds,
        "identical": True,
    }
    print(json.dumps({**setting, "groups": report}))


if __name__ == "__main__":
    main()
