"""`foreword plan` and `bench drafting` on the tiny model: figures, and a file that works."""

from __future__ import annotations

import json

import pytest
import yaml
from test_cli_errors import check

import apparatus
from foreword.bench import plan as room
from foreword.bench.sides import Sides
from foreword.llm import LLM


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"turns": [f"a b a b {number}"]}) for number in range(3)]
    path.write_text("\n".join([*lines, "", "plain text a b a b"]) + "\n")
    return path


def test_plan_measures_both_ways_and_its_file_is_read_back(cli, prompts, tmp_path):
    output = tmp_path / "plan.yaml"
    ran = cli(
        *("plan", apparatus.target(), "--prompts", prompts, "--max-tokens", 12, "--json"),
        *("--threads", 1, "--output", output),
    )
    assert ran.status == 0, ran.err
    found = ran.json
    assert set(found["tokens_per_s"]) == {"1", "4"}
    for sides in found["tokens_per_s"].values():
        for side in sides.values():
            assert side["measured"] > 0
            assert side["predicted"] > 0
        assert sides["plain"]["acceptance_length"] == 1.0
        assert sides["drafting"]["acceptance_length"] >= 1.0
    costs = list(found["milliseconds_by_rows"].values())
    assert costs == sorted(costs)
    for source in found["sources"].values():
        assert 0 <= source["accepted"] <= source["drafted"]
    assert yaml.safe_load(output.read_text()) == found["recommended"]
    again = cli(
        *("generate", apparatus.target(), "--prompt", "a", "--max-tokens", 2),
        *("--threads", 1, "--max-model-len", 64, "--config", output),
    )
    assert again.status == 0, again.err


def test_plan_is_not_recommended_where_it_does_not_pay():
    slow, fast = room.Speed(1.0, 1.0, 1.5), room.Speed(2.0, 2.0, 1.0)
    found = room.Plan([], 0.0, speeds={1: (fast, slow)})
    assert found.recommended(None_llm()) == {"drafter": "none", "max-num-seqs": 1}
    found.speeds |= {4: (slow, fast), 8: (slow, fast)}
    options = found.recommended(None_llm())
    assert options.pop("max-num-seqs") in (4, 8)
    assert options == {
        "drafter": "auto",
        "tree": "goodput",
        "num-speculative-tokens": 15,
        "no-draft-learning": True,
        "speculative-config": '{"salts": 3}',
    }


class None_llm:
    """As much of an LLM as a recommendation looks at."""

    class built:
        class config:
            class speculative:
                method, tree, model = "auto", "goodput", None
                num_speculative_tokens, learning, options = 15, False, {"salts": 3}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--node-budget", 4), ("node-budget", "looks at costs")),
        (("--drafter", "none"), ("drafter none",)),
        (("--tree", "chain"), ("goodput",)),
    ],
)
def test_plan_needs_measured_costs(cli, prompts, words, says):
    ran = cli("plan", apparatus.target(), "--prompts", prompts, "--max-model-len", 64, *words)
    check(ran, *says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--max-tokens", 1), ("--max-tokens", "at least 2")),
        (("--output", "nowhere/plan.yaml"), ("--output", "folder")),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_measured(cli, prompts, words, says):
    check(cli("plan", "no/such-model", "--prompts", prompts, *words), *says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"turns": []}', ("line 1",)),
        ('{"turns": 5}', ("line 1",)),
        ("{oops", ("line 1", "JSON")),
        ("", ("no",)),
    ],
)
def test_bad_prompt_files_are_named(cli, tmp_path, line, says):
    path = tmp_path / "bad.jsonl"
    path.write_text(line + "\n")
    check(cli("plan", apparatus.target(), "--prompts", path), str(path), *says)


def test_bench_drafting_counts_every_guess(cli):
    ran = cli("bench", "drafting", apparatus.target(), "--tokens", 6, "--threads", 1)
    assert ran.status == 0, ran.err
    found = json.loads(ran.out.splitlines()[-1])["reliability"]
    assert "mix" in found
    for one in found.values():
        assert one["guesses"] == sum(band["guesses"] for band in one["bins"])
        assert 0 <= one["error"] <= 1
    assert "expected calibration error" in ran.out


def test_sides_give_the_same_tokens_and_the_log_adds_up():
    from foreword.types import SamplingParams

    with LLM(str(apparatus.target()), max_model_len=128, threads=1) as llm:
        sides, outputs = Sides(llm), {}
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        for drafts in (False, True):
            with sides.run(drafts) as log:
                [result] = llm.generate([[1, 2, 3] * 6], params)
            outputs[drafts] = result.outputs[0].token_ids
            assert log.tokens in (19, 20)  # the first comes with the prompt
            assert all(step.rows >= step.sequences == 1 for step in log.steps)
            assert sum(log.accepted.values()) <= sum(log.drafted.values())
            assert bool(log.drafted) == drafts or not log.drafted
        assert outputs[False] == outputs[True]
