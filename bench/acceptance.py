"""Mean acceptance length of drafters, per group of prompts, EOS honoured.

Theory: tokens per verify pass is the only thing a drafter can improve; what a pass costs is the
kernels' business. Plain decoding is 1.0. Greedy, one prompt at a time, so nothing but the drafter
and the node budget decides. Every answer is checked against plain decoding of the same prompt; a
difference ends the run. Prompts whose answer is a loop (fewer than half of its 4-grams differ) are
counted, and shown apart: any drafter is right there. Last line: one JSON object.

Groups: the six of Spec-Bench, ten questions each (data/spec_bench_10.jsonl, `--four` for the
smaller list), edit (data/edit.jsonl), free. Several drafters, with commas between them, are merged:
each drafts for the whole budget, and of equal nodes the higher score stays.

    .venv/bin/python bench/acceptance.py [--model M] [--drafter suffix,recycle] [--groups edit,qa]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from pathlib import Path
from typing import Any

from foreword import LLM, SamplingParams
from foreword.bench.texts import free_prompts
from foreword.build import bigram_source, compiled_rows, make_drafter
from foreword.draft._context import DraftContext
from foreword.model.llama import Decoder
from foreword.protocols import Drafter
from foreword.sample.rows import NumpyRows
from foreword.types import Outcome, Sequence, Trie

DATA = Path(__file__).parent / "data"
SPEC_BENCH = ("multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag")
GROUPS = (*SPEC_BENCH, "edit", "free")
LOOP = 0.5  # share of different 4-grams below which an answer is a loop


class Merged:
    """Several drafters in one trie, each with the whole budget, none with an eye on the others."""

    name = "merged"

    def __init__(self, drafters: SequenceOf[Drafter]) -> None:
        self.drafters = drafters

    def begin(self, sequence: Sequence) -> None:
        for drafter in self.drafters:
            drafter.begin(sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        merged = [Trie() for _ in sequences]
        for drafter in self.drafters:
            for into, trie in zip(merged, drafter.propose(sequences, budget), strict=True):
                moved = {-1: -1}
                for node, parent in enumerate(trie.parents):
                    moved[node] = into.add(
                        moved[parent],
                        trie.tokens[node],
                        trie.scores[node],
                        trie.sources[node],
                        trie.evidence[node],
                    )
        return merged

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for drafter in self.drafters:
            drafter.observe(outcomes)

    def end(self, sequence: Sequence) -> None:
        for drafter in self.drafters:
            drafter.end(sequence)


def prompts(group: str, four: bool) -> list[str]:
    if group == "free":
        return free_prompts()
    name = "edit" if group == "edit" else "spec_bench_10"
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    if group == "edit":
        return [row["turns"][0] for row in rows]
    return [row["turns"][0] for row in rows if row["group"] == group and row["four"] >= four]


def loops(token_ids: list[int]) -> bool:
    grams = [tuple(token_ids[start : start + 4]) for start in range(len(token_ids) - 3)]
    return bool(grams) and len(set(grams)) < LOOP * len(grams)


def mean(numbers: list[float]) -> float:
    return round(sum(numbers) / len(numbers), 3) if numbers else 0.0


def make_llm(options: argparse.Namespace, method: str, batch: int) -> LLM:
    config: dict[str, Any] = {"method": method}
    if method != "none":
        depth = options.depth or options.node_budget
        config |= {"node_budget": options.node_budget, "num_speculative_tokens": depth}
        config |= json.loads(options.options)
    return LLM(
        options.model,
        speculative_config=config,
        numerics=None if options.numerics == "default" else options.numerics,
        max_model_len=3072,
        max_num_seqs=batch,
    )


def drafting_llm(options: argparse.Namespace) -> LLM:
    """One engine; several drafters, with their default options, take the place of the first."""
    first, *others = options.drafter.split(",")
    llm = make_llm(options, first, 1)
    if others:
        built, model = llm.built, llm.engine.parts.model
        assert isinstance(model, Decoder)
        context = DraftContext(
            options.depth or options.node_budget,
            model.vocab_size,
            row_ops=compiled_rows(model) or NumpyRows(),
            bigrams=bigram_source(built.config, built.checkpoint, built.tokenizer, model, None),
        )
        rest = [make_drafter(name, {}, context) for name in others]
        merged = Merged([llm.engine.parts.drafter, *rest])
        llm.engine.parts = replace(llm.engine.parts, drafter=merged)
    return llm


def measured(llm: LLM, plain: LLM, texts: list[str], params: SamplingParams) -> dict[str, Any]:
    """Acceptance lengths over one group; exits if a token differs from plain decoding."""
    talks = [[{"role": "user", "content": text}] for text in texts]
    guessed = [answer.outputs[0] for answer in llm.chat(talks, params)]
    expected = [answer.outputs[0] for answer in plain.chat(talks, params)]
    for one, other in zip(guessed, expected, strict=True):
        if one.token_ids != other.token_ids:
            sys.exit("tokens differ from plain decoding: no figure is reported")
    counts = [one.metrics["speculative_decoding"] for one in guessed]
    lengths = [count["mean_acceptance_length"] for count in counts]
    looping = [loops(list(one.token_ids)) for one in guessed]
    tokens = sum(len(one.token_ids) for one in guessed)
    return {
        "mean_acceptance_length": mean(lengths),
        "without_loops": mean([x for x, loop in zip(lengths, looping, strict=True) if not loop]),
        "loops": [round(x, 2) for x, loop in zip(lengths, looping, strict=True) if loop],
        "tokens_per_pass": round(tokens / sum(count["num_spec_steps"] for count in counts), 3),
        "tokens": tokens,
        "prompts": len(lengths),
        "each": [round(length, 2) for length in lengths],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--drafter", default="ngram", help="one, or several with commas: merged")
    parser.add_argument("--groups", default="all", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--four", action="store_true", help="four questions of a group, not ten")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--numerics", default="bfloat16")
    parser.add_argument("--node-budget", type=int, default=32)
    parser.add_argument("--depth", type=int, help="longest path, default the node budget")
    parser.add_argument("--options", default="{}", help="of the drafter, JSON")
    options = parser.parse_args()
    groups = GROUPS if options.groups == "all" else tuple(options.groups.split(","))
    if unknown := set(groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there is: {', '.join(GROUPS)}")

    drafting, plain = drafting_llm(options), make_llm(options, "none", 8)
    params = SamplingParams(options.temperature, seed=7, max_tokens=options.max_tokens)
    report: dict[str, Any] = {}
    for group in groups:
        report[group] = measured(drafting, plain, prompts(group, options.four), params)
        print(f"{group}: {report[group]}", flush=True)
    spec = [report[group] for group in SPEC_BENCH if group in report]
    for figure in ("mean_acceptance_length", "without_loops", "tokens_per_pass"):
        print(f"Spec-Bench groups, mean of {figure}: {mean([row[figure] for row in spec])}")
    settings = vars(options) | {"numerics": drafting.built.numerics, "identical": True}
    print(json.dumps({**settings, "groups": report}))


if __name__ == "__main__":
    main()
