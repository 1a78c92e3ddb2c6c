"""Every group of prompts at several concurrencies: drafting over plain decoding, as a table.

The pairs of speedup.py (see there), in one process on one loaded model; every batch is full: what a
group lacks is taken from the groups after it, never the same prompt twice in a round. Rounds are
repeated until a cell has `--pairs` pairs. OUT.json and OUT.md are written after every cell, so a
run that is cut off keeps what it has.

    .venv/bin/python bench/speedup_table.py --out smollm2                      about 16 minutes
    .venv/bin/python bench/speedup_table.py --out qwen15 --model FILE --prompts 4 --cells 1@0
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import chain
from pathlib import Path
from typing import Any

from speedup import Pair, bounds, pair, prompts, ratio

from foreword import LLM, SamplingParams
from foreword.bench.sides import Sides

CELLS = "1@0,2@0,4@0,8@0,16@0,1@0.8,8@0.8"  # concurrency @ temperature


def batches(every: dict[str, list[str]], group: str, count: int, width: int) -> list[list[str]]:
    """`count` prompts of the group in batches of `width`, the last one filled from other groups."""
    names = list(every)
    after = names[names.index(group) + 1 :] + names[: names.index(group)]
    others = chain.from_iterable(zip(*(every[name] for name in after), strict=False))
    own = every[group][:count]
    whole = own + [next(others) for _ in range(-len(own) % width)]
    return [whole[at : at + width] for at in range(0, len(whole), width)]


def cell(
    llm: LLM, sides: Sides, lots: list[list[str]], params: SamplingParams, pairs: int
) -> dict[str, Any]:
    found: list[Pair] = []
    turn = 0
    while len(found) < pairs:
        sides.forget()
        for number, batch in enumerate(lots):
            found.append(pair(llm, sides, batch, params, (turn + number) % 2 == 1))
        turn += 1
    low, high = bounds(found)
    tokens = sum(one.tokens for one in found)
    return {
        "ratio": round(ratio(found), 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "acceptance_length": round(tokens / sum(one.steps for one in found), 2),
        "plain_tokens_per_s": round(tokens / sum(one.plain for one in found), 1),
        "tokens_per_s": round(tokens / sum(one.drafting for one in found), 1),
        "pairs": len(found),
    }


def table(report: dict[str, dict[str, dict[str, Any]]], groups: list[str]) -> str:
    """Markdown: ratio (95 % bounds) acceptance length, by cell and group."""
    lines = ["| | " + " | ".join(groups) + " | mean |", "|---|" + "---|" * (len(groups) + 1)]
    for name, row in report.items():
        shown = []
        for group in groups:
            one = row.get(group)
            if one is None:
                shown.append("")
                continue
            bounds_of = f"{one['low']:.2f} to {one['high']:.2f}"
            shown.append(f"{one['ratio']:.2f} ({bounds_of}), {one['acceptance_length']}")
        ratios = [row[group]["ratio"] for group in groups if group in row and group != "edit"]
        mean = f"{sum(ratios) / len(ratios):.2f}" if ratios else ""
        lines.append(f"| {name} | " + " | ".join(shown) + f" | {mean} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--speculative-config", default="{}", help="JSON; default: the default")
    parser.add_argument("--groups", help="names, separated by commas; default: all")
    parser.add_argument("--cells", default=CELLS, help="concurrency@temperature, by commas")
    parser.add_argument("--prompts", type=int, default=10, help="of each group at most")
    parser.add_argument("--pairs", type=int, default=2, help="of each cell at least")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--out", required=True, help="path without its ending")
    options = parser.parse_args()
    every = prompts()
    groups = options.groups.split(",") if options.groups else list(every)
    cells = [(int(one.split("@")[0]), float(one.split("@")[1])) for one in options.cells.split(",")]
    speculative = json.loads(options.speculative_config)
    llm = LLM(
        options.model,
        speculative_config=speculative,
        max_model_len=2048,
        max_num_seqs=max(width for width, _ in cells),
        enable_prefix_caching=False,
    )
    sides = Sides(llm)
    pair(llm, sides, every[groups[0]][:1], SamplingParams(0.0, seed=7, max_tokens=64), False)
    report: dict[str, dict[str, dict[str, Any]]] = {}
    started = time.monotonic()
    for width, temperature in cells:
        row = report.setdefault(f"batch {width}, temperature {temperature:g}", {})
        params = SamplingParams(temperature, seed=7, max_tokens=options.max_tokens)
        for group in groups:
            lots = batches(every, group, options.prompts, width)
            row[group] = cell(llm, sides, lots, params, options.pairs)
            print(f"{time.monotonic() - started:5.0f} s  {group} x{width} @{temperature:g}: "
                  f"{row[group]}", flush=True)  # fmt: skip
            setting = {"model": options.model, "speculative_config": speculative}
            setting |= {"max_tokens": options.max_tokens, "identical": True}
            text = json.dumps({**setting, "cells": report}, indent=1)
            Path(f"{options.out}.json").write_text(text + "\n", encoding="utf-8")
            Path(f"{options.out}.md").write_text(table(report, groups), encoding="utf-8")
    llm.close()


if __name__ == "__main__":
    main()
