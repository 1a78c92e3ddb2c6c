"""Approximate acceptance through the library's door: named everywhere, and nobody else notices."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_audit_command import Options

import apparatus
from accepting import OPTIONS
from foreword.audit.command import run as run_audit
from foreword.audit.replay import read_records, replay
from foreword.cli.as_json import output_json
from foreword.cli.statistics import receipt_line
from foreword.errors import RequestError
from foreword.families import names
from foreword.llm import LLM
from foreword.outputs import CompletionOutput
from foreword.types import SamplingParams

APPROXIMATE = [name for name in names("accept") if name != "exact"]
PROMPTS = ["red green red green", "the quick brown fox", "one two three one two"]


def open_llm(method: str = "model", **more: Any) -> LLM:
    plan: dict[str, Any] = {"method": method}
    if method == "model":
        plan |= {"model": str(apparatus.drafter_noise(num_layers=1)), "num_speculative_tokens": 4}
    more.setdefault("kv_cache_memory", 8 << 20)
    return LLM(
        str(apparatus.target(num_layers=1)),
        numerics="float32",
        backend="torch",
        generation_config="none",
        speculative_config=plan,
        threads=1,
        **more,
    )


@pytest.fixture(scope="module")
def llm() -> Any:
    with open_llm() as loaded:
        yield loaded


def asked(name: str = "exact", seed: int = 7, **fields: Any) -> SamplingParams:
    fields = {"temperature": 0.9, "max_tokens": 24, "logprobs": 2, **fields}
    if name != "exact":
        fields |= {"acceptance": name, "acceptance_options": OPTIONS.get(name)}
    return SamplingParams(seed=seed, **fields)


def bits(output: CompletionOutput) -> Any:
    """All that exact mode promises."""
    assert output.logprobs is not None
    rows = [
        {token: (one.logprob.hex(), one.rank) for token, one in row.items()}
        for row in output.logprobs
    ]
    return output.token_ids, rows, output.text, output.finish_reason


@pytest.fixture(scope="module")
def plain() -> Any:
    """Exact outputs of plain decoding, greedy and sampled, of each prompt alone."""
    with open_llm("none") as loaded:
        return {
            (prompt, temperature): bits(
                loaded.generate(prompt, asked(temperature=temperature))[0].outputs[0]
            )
            for prompt in PROMPTS
            for temperature in (0.0, 0.9)
        }


@pytest.mark.parametrize("name", APPROXIMATE)
def test_exact_neighbours_do_not_move_a_bit(name: str, llm: LLM, plain: Any):
    """Exact requests in one batch with approximate ones: ids, logprobs and texts are those of plain
    decoding alone; the approximate ones say what they are."""
    params, prompts = [], []
    for prompt in PROMPTS:
        for one in (asked(), asked(name, 5), asked(temperature=0.0), asked(name, 6)):
            params.append(one)
            prompts.append(prompt)
    outputs = [result.outputs[0] for result in llm.generate(prompts, params)]
    other = 0
    for prompt, one, output in zip(prompts, params, outputs, strict=True):
        assert output.error is None
        if one.acceptance == "exact":
            assert bits(output) == plain[prompt, one.temperature]
            assert output.exactness == output.metrics["exactness"] == "exact"
            assert output.receipt["exactness"] == "exact"
        else:
            named = output.exactness
            assert named.startswith(f"approximate: {name}")
            assert output.metrics["exactness"] == output.receipt["exactness"] == named
            other += (
                output.token_ids
                != llm.generate(prompt, asked(seed=one.seed))[0].outputs[0].token_ids
            )
    assert other or name in ("typical", "conditional")  # whose drafts may all be the target's


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_small_memory_preempts_and_loses_nothing(name: str):
    """Preempted requests keep their acceptor: all texts end at their length, the store is whole."""
    with open_llm(kv_cache_memory=60 << 10, block_size=4, max_model_len=72) as small:
        params = [asked(name, seed, max_tokens=40, ignore_eos=True) for seed in range(6)]
        outputs = small.generate(PROMPTS * 2, params)
        assert [len(one.outputs[0].token_ids) for one in outputs] == [40] * 6
        assert small.engine.parts.scheduler.num_preemptions > 0
        small.engine.parts.kv.check()


def test_a_result_says_it_in_json_and_cannot_be_replayed(llm: LLM, tmp_path, capsys):
    """The receipt names the scorer, not its memory; `audit --replay` refuses by name."""
    scorer = OPTIONS["reward"]["scorer"]
    (result,) = llm.generate(PROMPTS[0], asked("reward"))
    entry = output_json(0, result, result.outputs[0])
    path = tmp_path / "result.json"
    path.write_text(json.dumps([entry]), encoding="utf-8")
    assert entry["exactness"].startswith("approximate: reward scorer=")
    assert entry["receipt"]["sampling"]["acceptance"] == "reward"
    assert entry["receipt"]["sampling"]["acceptance_options"] == {"scorer": scorer.__qualname__}
    assert "[approximate: reward scorer=" in receipt_line(entry["receipt"])
    (outcome,) = replay(str(apparatus.target(num_layers=1)), read_records(path))
    assert outcome.problem is not None
    assert "it is approximate: reward" in outcome.problem

    assert run_audit(Options(str(apparatus.target(num_layers=1)), replay=path)) == 1
    out = capsys.readouterr().out
    assert "approximate: reward" in out
    assert "identical" not in out


def test_requests_that_cannot_be_are_refused_before_anything_runs(llm: LLM):
    for fields, parameter, message in [
        ({"acceptance": "guess"}, "acceptance", "no acceptance 'guess'; there is: block, cascade"),
        ({"acceptance": ""}, "acceptance", "acceptance must be a name"),
        ({"acceptance": "typical", "temperature": 0.0}, "acceptance", "needs temperature > 0"),
        ({"acceptance": "typical", "acceptance_options": 3}, "acceptance_options", "must map"),
        ({"acceptance_options": {"delta": 1}}, "acceptance_options", "no effect in exact mode"),
        ({"acceptance": "reward"}, "acceptance_options", "needs the option scorer"),
    ]:  # fmt: skip
        with pytest.raises(RequestError, match=message) as caught:
            llm.generate(PROMPTS[:2], [asked(), SamplingParams(**fields)])
        assert caught.value.parameter == parameter
        assert not llm.engine.has_work


def test_a_drafter_without_a_law_is_refused_by_name():
    with open_llm("ngram") as loaded:
        with pytest.raises(RequestError, match=r"'cascade' needs a drafter .* with 'ngram'"):
            loaded.generate(PROMPTS[0], asked("cascade"))
        (result,) = loaded.generate(PROMPTS[0], asked("ratio"))
        assert result.outputs[0].error is None


def test_a_scorer_that_fails_ends_its_own_request_only(llm: LLM, plain: Any):
    def scorer(before: list[int], step: list[int]) -> float:
        raise KeyError("no such reward")

    params = [asked("reward", acceptance_options={"scorer": scorer}), asked()]
    params[0] = SamplingParams(
        temperature=0.9, acceptance="reward", acceptance_options={"scorer": scorer}
    )
    bad, good = (result.outputs[0] for result in llm.generate(PROMPTS[:1] * 2, params))
    assert bad.finish_reason == "error"
    assert "the scorer failed with KeyError" in (bad.error or "")
    assert bits(good) == plain[PROMPTS[0], 0.9]
