"""Mean acceptance length of a drafter on the free-writing and code-edit prompts, EOS honoured.

Theory: tokens per verify pass is the only thing a drafter can improve; what a pass costs is the
kernels' business. Plain decoding is 1.0. Greedy, one prompt at a time, so nothing but the drafter
and the node budget decides. Every answer is checked against plain decoding of the same prompt; a
difference ends the run. Last line: one JSON object.

    .venv/bin/python bench/acceptance.py [--model M] [--drafter ngram] [--max-tokens 160]
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from foreword import LLM, SamplingParams
from foreword.bench.texts import free_prompts

DATA = Path(__file__).parent / "data"


def prompts(name: str) -> list[str]:
    if name == "free":
        return free_prompts()
    lines = (DATA / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--drafter", default="ngram")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--numerics", default="bfloat16")
    parser.add_argument("--node-budget", type=int, default=15)
    options = parser.parse_args()

    shared = {"numerics": options.numerics, "max_model_len": 2048, "max_num_seqs": 8}
    config = {"method": options.drafter, "node_budget": options.node_budget}
    drafting = LLM(
        options.model,
        speculative_config=config,
        max_num_seqs=1,
        **{key: value for key, value in shared.items() if key != "max_num_seqs"},
    )
    plain = LLM(options.model, speculative_config={"method": "none"}, **shared)
    params = SamplingParams(temperature=0.0, max_tokens=options.max_tokens)
    report = {}
    for name in ("free", "edit"):
        talks = [[{"role": "user", "content": text}] for text in prompts(name)]
        guessed = [answer.outputs[0] for answer in drafting.chat(talks, params)]
        expected = [answer.outputs[0] for answer in plain.chat(talks, params)]
        for one, other in zip(guessed, expected, strict=True):
            if one.token_ids != other.token_ids:
                sys.exit("tokens differ from plain decoding: no figure is reported")
        counts = [one.metrics["speculative_decoding"] for one in guessed]
        lengths = [count["mean_acceptance_length"] for count in counts]
        tokens = sum(len(one.token_ids) for one in guessed)
        steps = sum(count["num_spec_steps"] for count in counts)
        report[name] = {
            "mean_acceptance_length": round(sum(lengths) / len(lengths), 3),
            "tokens_per_pass": round(tokens / steps, 3),
            "tokens": tokens,
            "prompts": len(lengths),
        }
        print(f"{name}: {report[name]}; per prompt {[round(length, 2) for length in lengths]}")
    print(
        json.dumps(
            {
                "drafter": options.drafter,
                "node_budget": options.node_budget,
                "numerics": options.numerics,
                "identical": True,
                **report,
            }
        )
    )


if __name__ == "__main__":
    main()
