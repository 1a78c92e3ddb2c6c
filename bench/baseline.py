"""Tokens per second of Foreword's torch backend beside transformers' `generate`, in one session.

Ceiling: a decode pass reads every weight once, so at batch 1 plain decoding cannot exceed read
bandwidth / bytes of weights; the bandwidth is measured first and each figure printed as a share.
Runs are interleaved round by round, since these machines are noisy; figures are medians of decode
rates (prefill excluded: time of N tokens minus time of 1). Greedy, EOS ignored. Foreword's drafted
text is checked against its plain text; a difference ends the run. Last line: one JSON object.

    .venv/bin/python bench/baseline.py [--numerics float32] [--tokens 64] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from foreword import LLM, SamplingParams, machine
from foreword.bench.texts import free_prompts
from foreword.build import load_tokenizer
from foreword.model.weights.convert import convert_to_hf
from foreword.model.weights.open import open_checkpoint

MODEL = "smollm2-135m-instruct"
DATA = Path(__file__).parent / "data"
Generate = Callable[[list[list[int]], int], list[list[int]]]  # prompts, new tokens -> new ids


def prompts(kind: str) -> list[str]:
    if kind == "free":
        return free_prompts()
    lines = (DATA / f"{kind}.jsonl").read_text().splitlines()
    return [json.loads(line)["turns"][0] for line in lines]


def read_bandwidth() -> float:
    """GB/s of summing 512 MB on all threads, best of five."""
    block = torch.ones(2**27)
    best = min(_timed(block.sum) for _ in range(5))
    return block.numel() * 4 / best / 1e9


def _timed(task: Callable[..., Any], *arguments: Any) -> float:
    started = time.perf_counter()
    task(*arguments)
    return time.perf_counter() - started


def foreword_engine(method: str, numerics: str) -> Generate:
    llm = LLM(
        MODEL,
        speculative_config={"method": method},
        numerics=numerics,
        max_model_len=2048,
        max_num_seqs=8,
        enable_prefix_caching=False,
    )

    def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        return [answer.outputs[0].token_ids for answer in llm.generate(prompts, params)]

    return generate


def transformers_engine(numerics: str) -> Generate:
    checkpoint = open_checkpoint(MODEL)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        convert_to_hf(checkpoint, folder, load_tokenizer(checkpoint).save, dtype=numerics)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, numerics))
    model.eval()

    def generate(prompts: list[list[int]], count: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[2] * (width - len(one)) + one for one in prompts])
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=count,
                min_new_tokens=count,
                pad_token_id=2,
            )
        return out[:, width:].tolist()

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numerics", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    bandwidth = read_bandwidth()
    size = 4 if options.numerics == "float32" else 2
    weights = 134_515_008 * size  # SmolLM2-135M, the tied head counted once
    ceiling = bandwidth * 1e9 / weights
    print(
        f"{machine.machine_type()}, {torch.get_num_threads()} threads, {options.numerics}: "
        f"reads {bandwidth:.1f} GB/s, plain decoding at batch 1 <= {ceiling:.0f} tokens/s"
    )
    engines: dict[str, Generate] = {
        "foreword none": foreword_engine("none", options.numerics),
        "foreword ngram": foreword_engine("ngram", options.numerics),
        "transformers": transformers_engine(options.numerics),
    }
    tokenizer = load_tokenizer(open_checkpoint(MODEL))
    report: dict[str, Any] = {}
    for kind in ("free", "edit"):
        ids = [tokenizer.encode(text) for text in prompts(kind)]
        for batch in (1, 8):
            rates: dict[str, list[float]] = {name: [] for name in engines}
            for turn in range(options.rounds):
                chosen = ids if batch == 8 else [ids[turn % len(ids)]]
                texts = {}
                for name, generate in engines.items():
                    first = _timed(generate, chosen, 1)
                    started = time.perf_counter()
                    texts[name] = generate(chosen, options.tokens)
                    spent = time.perf_counter() - started - first
                    rates[name].append(batch * (options.tokens - 1) / spent)
                if texts["foreword none"] != texts["foreword ngram"]:
                    sys.exit("drafted text differs from plain decoding: no figure is reported")
            medians = {name: round(statistics.median(found), 1) for name, found in rates.items()}
            report[f"{kind} x{batch}"] = medians
            share = medians["foreword none"] / ceiling if batch == 1 else None
            print(
                f"{kind} x{batch}: {medians} tokens/s"
                + (f", plain at {share:.0%} of the ceiling" if share else "")
            )
    print(
        json.dumps(
            {
                "numerics": options.numerics,
                "read_gb_s": round(bandwidth, 1),
                "ceiling_tokens_per_s": round(ceiling, 1),
                "identical": True,
                **report,
            }
        )
    )


if __name__ == "__main__":
    main()
