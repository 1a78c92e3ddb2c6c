"""Speed of drafting under a JSON schema over plain decoding under the same schema, by schema.

Theory: where a form leaves one token, that token is certain and its row rides in a pass that is
made anyway; names of fields, quotes and braces are most of a JSON text, and what is not forced
repeats the prompt or the last object. Both sides mask every row and choose from what the schema
allows, so the texts are equal, token by token; a difference ends the run. Pairs are interleaved
(plain, drafting, drafting, plain, ...) on one loaded model; a pair is one prompt run to its end,
alone. Ratios are sums of seconds over all pairs, bounds 95 % bootstrap intervals over the pairs.
Every round starts with an engine that has learned nothing. `grammar`: share of tokens that the form
gave (sources grammar and layout). Last line: one JSON object.

    .venv/bin/python bench/structured.py [--model M] [--schemas person,order] [--rounds N]
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

DATA = Path(__file__).parent / "data" / "json_prompts.jsonl"
RESAMPLES = 2000


@dataclass(frozen=True)
class Pair:
    """One prompt, run both ways."""

    plain: float  # seconds
    drafting: float
    tokens: int
    steps: int  # verify passes of the drafting run
    forced: int  # tokens whose guess came from the form


def prompts() -> dict[str, list[dict[str, Any]]]:
    """By schema: text and schema of each prompt."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in DATA.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        found.setdefault(one["category"], []).append(one)
    return found


def pair(llm: LLM, sides: Sides, one: dict[str, Any], params: SamplingParams, flip: bool) -> Pair:
    talk = [{"role": "user", "content": one["turns"][0]}]
    outputs, seconds = {}, {}
    for drafts in (True, False) if flip else (False, True):
        with sides.run(drafts):
            started = time.perf_counter()
            outputs[drafts] = llm.chat(talk, params)[0].outputs[0]
            seconds[drafts] = time.perf_counter() - started
    if outputs[False].token_ids != outputs[True].token_ids:
        sys.exit("tokens differ from plain decoding: no figure is reported")
    if outputs[True].finish_reason == "stop":
        json.loads(outputs[True].text)
    steps = outputs[True].metrics["speculative_decoding"]["num_spec_steps"]
    forced = sum(source in ("grammar", "layout") for source in outputs[True].sources)
    return Pair(seconds[False], seconds[True], len(outputs[True].token_ids), steps, forced)


def ratio(pairs: list[Pair]) -> float:
    return sum(one.plain for one in pairs) / sum(one.drafting for one in pairs)


def bounds(pairs: list[Pair]) -> tuple[float, float]:
    """95 % of the ratios of resampled pairs."""
    chance = random.Random(0)
    found = sorted(ratio(chance.choices(pairs, k=len(pairs))) for _ in range(RESAMPLES))
    return found[RESAMPLES // 40], found[-RESAMPLES // 40 - 1]


def summary(pairs: list[Pair]) -> dict[str, Any]:
    low, high = bounds(pairs)
    tokens = sum(one.tokens for one in pairs)
    return {
        "ratio": round(ratio(pairs), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "acceptance_length": round(tokens / sum(one.steps for one in pairs), 3),
        "grammar": round(sum(one.forced for one in pairs) / tokens, 3),
        "plain_tokens_per_s": round(tokens / sum(one.plain for one in pairs), 1),
        "tokens_per_s": round(tokens / sum(one.drafting for one in pairs), 1),
        "pairs": len(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--speculative-config", default="{}", help="JSON; default: the default")
    parser.add_argument("--schemas", help="names, separated by commas; default: all")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()

    every = prompts()
    names = options.schemas.split(",") if options.schemas else list(every)
    speculative = json.loads(options.speculative_config)
    llm = LLM(
        options.model,
        speculative_config=speculative,
        max_model_len=2048,
        enable_prefix_caching=False,
    )
    sides = Sides(llm)
    report: dict[str, Any] = {}
    whole: list[Pair] = []
    for name in names:
        params = SamplingParams(
            temperature=options.temperature,
            seed=7,
            max_tokens=options.max_tokens,
            structured_outputs={"json": every[name][0]["schema"]},
        )
        llm.asks.forms.compiled(params.structured_outputs)  # once per form, not part of a request
        pairs: list[Pair] = []
        for turn in range(options.rounds):
            sides.forget()
            for number, one in enumerate(every[name]):
                pairs.append(pair(llm, sides, one, params, (turn + number) % 2 == 1))
        report[name] = summary(pairs)
        whole += pairs
        print(f"{name:10} {report[name]}", flush=True)
    report["all"] = summary(whole)
    print(f"{'all':10} {report['all']}", flush=True)
    llm.close()
    setting = {
        "model": options.model,
        "speculative_config": speculative,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "rounds": options.rounds,
        "identical": True,
    }
    print(json.dumps({**setting, "schemas": report}))


if __name__ == "__main__":
    main()
