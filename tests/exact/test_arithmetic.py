"""Arithmetic sampling with speculation: the tokens of plain decoding alone, whatever drafts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness import Rig, count, prompt, rig

import apparatus
from foreword import LLM, SamplingParams
from foreword.audit.replay import read_records, replay
from foreword.cli.as_json import output_json
from foreword.sample.arithmetic import code_of
from foreword.sample.named import NamedSamplers
from foreword.sample.noise import derive
from foreword.sample.sampler import GumbelSampler

PROMPTS = [prompt(9), (1, 2, 3, 1, 2, 3, 1, 2)]
WAYS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "min_p": 0.02},
    {"temperature": 0.0},
    {"temperature": 1.1, "typical_p": 0.9, "xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 1.0, "mirostat_mode": 2, "mirostat_tau": 4.0},
    {"temperature": 0.9, "repetition_penalty": 1.2, "logit_bias": {5: 4.0}, "bad_words": ["B"]},
]
Answer = list[tuple[list[int], Any, str]]


def params(way: dict[str, Any], seed: int = 11) -> SamplingParams:
    common = {"max_tokens": 12, "ignore_eos": True, "logprobs": 1, "n": 3}
    return SamplingParams(**way, **common, seed=seed, sampler="arithmetic")


def door(rig: Rig, **setting: Any) -> LLM:
    return rig.door(rig.engine(sampler=NamedSamplers(GumbelSampler()), **setting))


def answers(llm: LLM) -> list[Answer]:
    """Every prompt in every way, one batch."""
    pairs = [(ids, way) for ids in PROMPTS for way in WAYS]
    results = llm.generate([ids for ids, _ in pairs], [params(way) for _, way in pairs])
    llm.engine.parts.kv.check()
    found = []
    for result in results:
        assert [one.error for one in result.outputs] == [None] * 3
        found.append([(one.token_ids, one.logprobs, one.finish_reason) for one in result.outputs])
        for one in result.outputs:
            count(1, len(one.token_ids), len(one.token_ids))
    return found


@cache
def plain() -> list[Answer]:
    one = rig()
    return answers(door(one, batch=1, prefix=False))


SETTINGS: dict[str, dict[str, Any]] = {
    "batch": {},
    "narrow": {"batch": 4, "rows": 7, "block": 4},
    "tight": {"slots": 96, "batch": 12, "block": 4},
    "ngram": {"method": "ngram", "tree": "best_first"},
    "recycle": {"method": "recycle", "tree": "best_first"},
    "model": {"method": "model", "tree": "best_first"},
    "skip": {"method": "skip"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_nothing_moves_a_token(name: str) -> None:
    setting = dict(SETTINGS[name])
    if name == "model":
        setting["draft"] = rig(noise=apparatus.NOISE)
    llm = door(rig(), **setting)
    assert answers(llm) == plain()
    if name == "tight":
        assert llm.engine.parts.scheduler.num_preemptions > 0
    if name in ("recycle", "model"):
        assert llm.engine.stats.num_accepted > 0


def test_a_drafter_with_the_target_s_rows_is_right_at_temperature_one() -> None:
    """`rank` follows the code: the target drafting for itself loses nothing but near ties."""
    one = rig()
    llm = door(one, method="model", draft=one, k=6, nodes=64)
    llm.generate(PROMPTS[0], params({"temperature": 1.0}))
    stats = llm.engine.stats
    assert stats.num_accepted > 0.9 * stats.num_drafted > 10


def test_samples_have_their_codes_and_differ() -> None:
    llm = door(rig())
    (result,) = llm.generate(PROMPTS[0], params({"temperature": 1.0}))
    codes = [one.receipt["sampling"]["arithmetic_code"] for one in result.outputs]
    assert codes == [code_of(11, index, 3) for index in range(3)]
    assert [one.seed for one in result.outputs] == [derive(11, index) for index in range(3)]
    assert len({tuple(one.token_ids) for one in result.outputs}) == 3
    for one, code in zip(result.outputs, codes, strict=True):
        alone = SamplingParams(
            temperature=1.0, max_tokens=12, ignore_eos=True, seed=one.seed,
            sampler="arithmetic", arithmetic_code=code,
        )  # fmt: skip
        assert llm.generate(PROMPTS[0], alone)[0].outputs[0].token_ids == one.token_ids


def test_a_replay_re_derives_every_sample(tmp_path: Path) -> None:
    folder = str(apparatus.target())
    with LLM(folder, threads=1) as llm:
        (result,) = llm.generate("abcabc", params({"temperature": 1.0}, seed=4))
    file = tmp_path / "arithmetic.json"
    outputs = [output_json(0, result, one) for one in result.outputs]
    file.write_text(json.dumps(outputs))
    replayed = list(replay(folder, read_records(file), threads=1))
    assert [one.problem for one in replayed] == [None] * 3
    outputs[1]["receipt"]["sampling"]["arithmetic_code"] = 0.999
    file.write_text(json.dumps(outputs))
    problems = [one.problem for one in replay(folder, read_records(file), threads=1)]
    assert [problem is None for problem in problems] == [True, False, True]
