"""Receipts of requests with logprobs, several samples and ends of their own: what is in them, and
that a replay by plain decoding gives the same bits and notices others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import apparatus
from foreword.audit.replay import read_records, replay
from foreword.cli.as_json import output_json
from foreword.llm import LLM
from foreword.types import SamplingParams

PROMPT = "red green blue red green blue red green"
ASKED = [
    SamplingParams(temperature=0.9, seed=3, max_tokens=10, logprobs=0),
    SamplingParams(temperature=0.9, seed=4, max_tokens=10, logprobs=20, prompt_logprobs=3),
    SamplingParams(
        temperature=0.8, top_p=0.7, seed=5, max_tokens=10, logprobs=4, logprobs_mode="processed"
    ),
    SamplingParams(temperature=1.0, seed=6, n=2, best_of=4, max_tokens=10, time_limit=1e6),
    SamplingParams(max_tokens=0, prompt_logprobs=1),
    SamplingParams(
        temperature=1.0, seed=7, max_tokens=20, stop=["e"], include_stop_str_in_output=True
    ),
]


@pytest.fixture(scope="module")
def outputs() -> list[dict[str, Any]]:
    llm = LLM(str(apparatus.target()), threads=1, speculative_config={"method": "ngram"})
    results = llm.generate([PROMPT] * len(ASKED), ASKED)
    llm.close()
    found = [
        output_json(number, result, output)
        for number, result in enumerate(results)
        for output in result.outputs
    ]
    assert len(found) == len(ASKED) + 1
    return found


def problems(tmp_path: Path, content: Any) -> list[str | None]:
    """What a replay says of each receipt; None: nothing."""
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(content))
    found = replay(str(apparatus.target()), read_records(path), threads=1)
    return [one.problem for one in found]


def test_every_output_is_re_derived(outputs: list[dict[str, Any]], tmp_path: Path) -> None:
    receipts = [one["receipt"] for one in outputs]
    assert [("logprobs" in one, "prompt_logprobs" in one) for one in receipts] == [
        (True, False), (True, True), (True, False), (True, False), (True, False),
        (False, True), (False, False),
    ]  # fmt: skip
    assert receipts[2]["logprobs"]["mode"] == "processed"
    for receipt in receipts:
        cuts = {"time_limit", "best_of", "n", "logprobs", "logprobs_mode", "prompt_logprobs"}
        assert not cuts & set(receipt["sampling"]), "no token depends on these"
    assert problems(tmp_path, outputs) == [None] * len(outputs)


@pytest.mark.parametrize(
    ("place", "name"),
    [(0, "logprobs"), (1, "logprobs"), (1, "prompt_logprobs"), (2, "logprobs"),
     (5, "prompt_logprobs")],
)  # fmt: skip
def test_another_bit_in_the_logprobs_is_noticed(
    outputs: list[dict[str, Any]],
    tmp_path: Path,
    place: int,
    name: str,
) -> None:
    one = json.loads(json.dumps(outputs[place]))
    digest = one["receipt"][name]["sha256"]
    one["receipt"][name]["sha256"] = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    assert problems(tmp_path, one) == [f"the {name} differ, all tokens agree"]


def test_a_timeout_is_re_derived_as_far_as_it_went(
    outputs: list[dict[str, Any]], tmp_path: Path
) -> None:
    """As if the time had been up after four tokens, and before the first."""
    llm = LLM(str(apparatus.target()), threads=1, speculative_config={"method": "none"})
    params = SamplingParams(temperature=0.9, seed=4, max_tokens=10, logprobs=2, prompt_logprobs=3)
    stream = llm.deltas(PROMPT, params)
    for _ in range(4):
        _, sample = next(stream)
    stream.close()
    result = llm.output([sample], None)
    llm.close()
    one = json.loads(json.dumps(output_json(0, result, result.outputs[0])))
    one["receipt"]["finish_reason"] = "timeout"
    assert one["receipt"]["num_tokens"] == 4
    assert problems(tmp_path, one) == [None]
    one["token_ids"] = []
    empty = {"num_tokens": 0, "tokens_sha256": outputs[5]["receipt"]["tokens_sha256"]}
    one["receipt"] |= empty
    assert problems(tmp_path, one) == [None]
