"""`foreword audit` and `--replay` as a user meets them: words, JSON, exit status."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mutants import m_dependent_matmul, noise_ignores_seed, stale_kv_row

import apparatus
from foreword.audit import laboratory
from foreword.audit.command import run
from foreword.cli.as_json import output_json
from foreword.errors import ConfigError, RequestError
from foreword.llm import LLM
from foreword.receipt import ids_sha256
from foreword.sample.sampler import GumbelSampler
from foreword.types import SamplingParams

PROMPT = "red green red green red"


@dataclass(slots=True)
class Options:
    """What the command line would hand over."""

    model: str
    quick: bool = True
    replay: Path | None = None
    prompt: list[str] | None = None
    numerics: str = "float32"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    backend: str = "torch"
    isa: str | None = None
    threads: int | None = 1
    drafters: str | None = "noisy"
    adapters: dict[str, str] = field(default_factory=dict)
    draft_model: str | None = None
    device: str = "cpu"
    revision: str | None = None
    seed: int | None = 5
    json: bool = False


@pytest.fixture(scope="module")
def model() -> str:
    return str(apparatus.target(num_layers=1))


def test_it_says_what_was_covered_and_ends_with_identical(model, capsys):
    assert run(Options(model, prompt=["my own prompt"])) == 0
    out = capsys.readouterr().out
    last = out.strip().splitlines()[-1]
    assert last.startswith("identical: ")
    assert "bit for bit" in last
    for word in ("drafter", "arrival", "hostile", "priority", "preemptions", "logprobs", "seed"):
        assert word in out


def test_a_difference_is_reported_with_status_1(model, capsys, monkeypatch):
    stale_kv_row(monkeypatch)
    assert run(Options(model)) == 1
    out = capsys.readouterr().out
    assert out.strip().splitlines()[-1].startswith("different: ")
    assert "top-2 margin" in out
    assert "logic error" in out
    assert "identical" not in out


def test_moved_bits_are_called_numerics(model, capsys, monkeypatch):
    m_dependent_matmul(monkeypatch)
    assert run(Options(model, json=True)) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["identical"] is False
    first = data["differences"][0]
    assert first["verdict"] == "near-tie numerics"
    assert 0 < first["moved"] < 1e-3
    assert first["margin"] >= 0
    assert data["num_settings"] == len(data["settings"])


def test_faults_of_the_random_streams_count(model, capsys, monkeypatch):
    noise_ignores_seed(monkeypatch)
    monkeypatch.setattr(laboratory, "make_sampler", lambda model: GumbelSampler())  # what it breaks
    assert run(Options(model)) == 1
    out = capsys.readouterr().out
    assert "does not depend on the seed" in out
    assert "1 faults of the random streams" in out


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        ({"drafters": "medusa"}, ConfigError, "medusa"),
        ({"drafters": " , "}, ConfigError, "--drafters is empty"),
        ({"prompt": ["x" * 200]}, RequestError, "200 tokens"),
        ({"prompt": [""]}, RequestError, "0 tokens"),
        ({"numerics": "float16"}, ConfigError, "float16"),
        ({"replay": Path("no-such-file.json")}, ConfigError, "no-such-file.json"),
    ],
)
def test_bad_input_is_named(model, change: dict[str, Any], error, named):
    options = Options(model)
    for name, value in change.items():
        setattr(options, name, value)
    with pytest.raises(error, match=named):
        run(options)


# Replay ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(model: str) -> dict[str, Any]:
    """What `generate --json` prints, of speculated runs: greedy, sampled, stopped, chat."""
    llm = LLM(model, threads=1, speculative_config={"method": "ngram"})
    params = [
        SamplingParams(temperature=0.0, max_tokens=12),
        SamplingParams(temperature=0.8, top_p=0.9, n=2, max_tokens=12),
        SamplingParams(temperature=1.0, min_p=0.02, seed=7, max_tokens=12, stop_token_ids=[65]),
    ]
    results = llm.generate([PROMPT] * len(params), params)
    message = [{"role": "user", "content": "hi"}]
    results += llm.chat(message, SamplingParams(max_tokens=8), date="2025-01-31")
    llm.close()
    outputs = [
        output_json(number, each, output)
        for number, each in enumerate(results)
        for output in each.outputs
    ]
    return json.loads(json.dumps({"drafter": "ngram", "outputs": outputs}))


def replayed(model: str, tmp_path: Path, content: Any, capsys, **change: Any) -> tuple[int, str]:
    path = tmp_path / "receipt.json"
    path.write_text(json.dumps(content))
    status = run(Options(model, replay=path, **change))
    return status, capsys.readouterr().out


def copied(content: Any) -> Any:
    return json.loads(json.dumps(content))


def test_a_replay_re_derives_every_output(model, tmp_path, content, capsys):
    status, out = replayed(model, tmp_path, content, capsys)
    assert status == 0, out
    assert out.splitlines()[-1].startswith("identical: 5 results")
    status, out = replayed(model, tmp_path, content, capsys, json=True)
    assert json.loads(out)["identical"] is True


def test_a_bare_receipt_needs_the_prompt(model, tmp_path, content, capsys):
    bare = content["outputs"][0]["receipt"]
    status, out = replayed(model, tmp_path, bare, capsys, prompt=[PROMPT])
    assert status == 0, out
    status, out = replayed(model, tmp_path, bare, capsys)
    assert status == 1
    assert "--prompt" in out
    status, out = replayed(model, tmp_path, bare, capsys, prompt=["another"])
    assert status == 1
    assert "sha256 differs" in out


def test_a_chat_receipt_takes_the_message_as_prompt(model, tmp_path, content, capsys):
    bare = content["outputs"][-1]["receipt"]
    status, out = replayed(model, tmp_path, bare, capsys, prompt=["hi"])
    assert status == 0, out


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("numerics_version",), 0, "numerics version is 0"),
        (("machine",), "riscv64", "machine type is riscv64"),
        (("model", "sha256"), "0" * 64, "model sha256"),
        (("model", "eos_ids"), [7], "model eos_ids"),
        (("model", "vocab_size"), 3, "model vocab_size"),
        (("build", "torch"), "1.0", "torch is 1.0"),
        (("build", "MKL_CBWR"), "COMPATIBLE", "MKL_CBWR is COMPATIBLE"),
    ],
)
def test_what_cannot_be_re_derived_here_is_named(
    model, tmp_path, content, capsys, path, value, named
):
    one = copied(content["outputs"][0])
    place = one["receipt"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    status, out = replayed(model, tmp_path, one, capsys)
    assert status == 1
    assert named in out


def test_another_version_is_a_note(model, tmp_path, content, capsys):
    one = copied(content["outputs"][0])
    one["receipt"]["foreword"] = "0.0.1"
    status, out = replayed(model, tmp_path, one, capsys)
    assert status == 0
    assert "note: made by foreword 0.0.1" in out


def test_a_false_token_is_located(model, tmp_path, content, capsys):
    one = copied(content["outputs"][0])
    one["token_ids"][3] += 1
    status, out = replayed(model, tmp_path, one, capsys)
    assert status == 1
    assert "not those of its receipt" in out
    one["receipt"]["tokens_sha256"] = ids_sha256(one["token_ids"])
    status, out = replayed(model, tmp_path, one, capsys)
    assert status == 1
    assert "first difference at output position 3" in out
    assert "top-2 margin" in out
    assert "different: 1 of 1" in out.splitlines()[-1]


def test_another_seed_or_finish_reason_shows(model, tmp_path, content, capsys):
    one = copied(content["outputs"][1])
    one["receipt"]["seed"] ^= 1
    status, out = replayed(model, tmp_path, one, capsys)
    assert status == 1
    assert "first difference" in out
    two = copied(content["outputs"][0])
    two["receipt"]["finish_reason"] = "stop"
    status, out = replayed(model, tmp_path, two, capsys)
    assert status == 1
    assert "finish reason is stop in the receipt, length here" in out


def test_a_result_that_was_cut_is_re_derived_as_far_as_it_went(model, tmp_path, content, capsys):
    one = copied(content["outputs"][0])
    one["token_ids"] = one["token_ids"][:5]
    receipt = one["receipt"]
    receipt["num_tokens"], receipt["finish_reason"] = 5, "abort"
    receipt["tokens_sha256"] = ids_sha256(one["token_ids"])
    status, out = replayed(model, tmp_path, one, capsys)
    assert status == 0, out


@pytest.mark.parametrize(
    ("text", "named"),
    [("{", "is not JSON"), ('{"outputs": []}', "holds no receipt"), ("[1]", "holds no receipt")],
)
def test_a_file_without_a_receipt_is_named(model, tmp_path, text, named):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=named):
        run(Options(model, replay=path))
