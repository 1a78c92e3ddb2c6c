"""`foreword generate`: prompts of every kind, --json, --verify, options by any name."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict

import pytest

import apparatus
from foreword.types import SamplingParams

COPY = "abcabcabcabcabc"
SHORT = ("--max-tokens", 12, "--ignore-eos")


def outputs(ran):
    assert ran.status == 0, ran.err
    return ran.json["outputs"]


def test_text_on_stdout_statistics_on_stderr(cli, tiny_path):
    ran = cli("generate", tiny_path, "--prompt", COPY, "--raw", "--seed", 1, *SHORT)
    assert ran.status == 0
    (stored,) = outputs(
        cli("generate", tiny_path, "--prompt", COPY, "--raw", "--seed", 1, *SHORT, "--json")
    )
    assert ran.out == stored["text"] + "\n"
    for word in ("12 tokens", "tokens/s", "drafter auto", "acceptance length", "receipt:"):
        assert word in ran.err
    assert stored["receipt"]["tokens_sha256"][:12] in ran.err
    assert " seed 1 " in ran.err


def test_json_holds_everything_and_nothing_else_is_printed(cli, tiny_path):
    ran = cli("generate", tiny_path, "--prompt", "hello", "--logprobs", 2, *SHORT, "--json")
    assert ran.err == ""
    (one,) = outputs(ran)
    assert len(one["token_ids"]) == len(one["logprobs"]) == len(one["sources"]) == 12
    assert [row["token_id"] for row in one["logprobs"]] == one["token_ids"]
    assert all(len(row["top"]) == 2 for row in one["logprobs"])
    assert one["finish_reason"] == "length"
    assert one["seed"] == one["receipt"]["seed"]
    assert one["receipt"]["num_prompt_tokens"] == len(one["prompt_token_ids"])
    assert one["metrics"]["speculative_decoding"]["num_spec_steps"] > 0


def test_quantised_at_load_and_told_in_the_receipt(cli, tiny_path):
    words = ("--prompt", "hello", "--numerics", "a8", "--quantization", "int8", *SHORT)
    ran = cli("generate", tiny_path, *words, "--seed", 1)
    assert ran.status == 0
    assert "/a8-int8/bfloat16/cpu" in ran.err
    (one,) = outputs(cli("generate", tiny_path, *words, "--verify", "--json"))
    assert one["receipt"]["numerics"]["quantization"] == "int8"
    assert one["receipt"]["numerics"]["mode"] == "a8"


def test_json_logprobs_keep_their_bits(cli, tiny_path):
    from foreword import LLM, SamplingParams

    words = ("--prompt", "hello", "--raw", "--seed", 3, "--max-tokens", 6, "--logprobs", 1)
    (one,) = outputs(cli("generate", tiny_path, *words, "--json"))
    llm = LLM(str(tiny_path))
    params = SamplingParams(seed=3, max_tokens=6, logprobs=1)
    rows = llm.generate("hello", params)[0].outputs[0].logprobs
    llm.close()
    exact = [
        struct.pack("<d", row[token].logprob)
        for token, row in zip(one["token_ids"], rows, strict=True)
    ]
    assert [struct.pack("<d", row["logprob"]) for row in one["logprobs"]] == exact


def test_prompt_from_option_file_stdin_and_ids_is_the_same(cli, tiny_path, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("hello", encoding="utf-8")
    ids = ",".join(str(byte) for byte in b"hello")
    common = ("--seed", 7, *SHORT, "--json", "--raw")
    ways = [
        cli("generate", tiny_path, "--prompt", "hello", *common),
        cli("generate", tiny_path, "--prompt-file", file, *common),
        cli("generate", tiny_path, "--prompt-file", "-", *common, stdin="hello"),
        cli("generate", tiny_path, *common, stdin="hello"),
        cli("generate", tiny_path, "--prompt-ids", ids, *common),
    ]
    assert len({tuple(outputs(ran)[0]["token_ids"]) for ran in ways}) == 1


def test_a_chat_template_wraps_the_prompt_unless_raw(cli, tiny_path):
    wrapped, raw = (
        outputs(cli("generate", tiny_path, "--prompt", "hi", *mode, *SHORT, "--json"))[0]
        for mode in ((), ("--raw",))
    )
    assert raw["prompt_token_ids"] == list(b"hi")
    assert wrapped["prompt_token_ids"][0] == apparatus.IM_START
    assert "chat_date" in wrapped["receipt"]
    assert "chat_date" not in raw["receipt"]
    told = cli("generate", tiny_path, "--prompt", "hi", "--system", "be brief", *SHORT, "--json")
    assert len(outputs(told)[0]["prompt_token_ids"]) > len(wrapped["prompt_token_ids"])


def test_a_batch_gives_each_prompt_what_it_gets_alone(cli, tiny_path):
    prompts = [COPY, "hello", "xyz"]
    common = ("--seed", 5, "--temperature", 0.8, *SHORT, "--json")
    flags = [word for prompt in prompts for word in ("--prompt", prompt)]
    together = outputs(cli("generate", tiny_path, *flags, *common))
    assert [one["prompt"] for one in together] == prompts
    for prompt, one in zip(prompts, together, strict=True):
        (alone,) = outputs(cli("generate", tiny_path, "--prompt", prompt, *common))
        assert alone["token_ids"] == one["token_ids"]


def test_samples_have_seeds_that_reproduce_them(cli, tiny_path):
    words = ("--prompt", "hello", "--temperature", 1, *SHORT, "--json")
    three = outputs(cli("generate", tiny_path, "--n", 3, "--seed", 11, *words))
    assert [one["index"] for one in three] == [0, 1, 2]
    assert len({one["seed"] for one in three}) == 3
    for one in three:
        (alone,) = outputs(cli("generate", tiny_path, "--seed", one["seed"], *words))
        assert alone["token_ids"] == one["token_ids"]


def test_several_outputs_are_told_apart_as_text(cli, tiny_path):
    ran = cli("generate", tiny_path, "--prompt", "a", "--prompt", "b", "--max-tokens", 2)
    assert "== prompt 0, sample 0 ==" in ran.out
    assert "== prompt 1, sample 0 ==" in ran.out
    assert "2 outputs" in ran.err


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_verify_prints_identical(cli, tiny_path, temperature):
    words = ("--prompt", COPY, "--temperature", temperature, "--verify", *SHORT)
    ran = cli("generate", tiny_path, *words)
    assert ran.status == 0
    assert "identical: 12 tokens and 12 logprobs" in ran.out
    assert "plain decoding:" in ran.err


def test_verify_of_a_batch_with_samples_as_json(cli, tiny_path, drafter_noise_path):
    words = ("--prompt", "a", "--prompt", COPY, "--n", 2, "--logprobs", 3, *SHORT)
    ran = cli("generate", tiny_path, *words, "-md", drafter_noise_path, "--verify", "--json")
    found = ran.json["verify"]
    assert ran.status == 0
    assert found["identical"] is True
    assert (found["outputs"], found["tokens"]) == (4, 48)
    assert found["logprobs"] >= 4 * 12 * 3
    assert ran.json["drafter"] == "model"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda result: result.token_ids.__setitem__(4, 9), "token 4: 9"),
        (lambda result: result.token_ids.pop(), "end: (tokens, reason, text) (11,"),
        (lambda result: setattr(result, "finish_reason", "stop"), "'stop'"),
        (lambda result: nudge(result, 2), "logprobs of token 2"),
    ],
)
def test_verify_reports_the_first_difference(cli, tiny_path, monkeypatch, spoil, words):
    """The first run's result is spoiled; the plain run is not."""
    from foreword.llm import LLM

    right = LLM.result

    def spoiled(self, sample):
        result = right(self, sample)
        if self.engine.parts.drafter.name != "none":
            spoil(result)
        return result

    monkeypatch.setattr(LLM, "result", spoiled)
    ran = cli("generate", tiny_path, "--prompt", COPY, "--seed", 1, "--verify", *SHORT)
    assert ran.status == 1
    assert "identical" not in ran.out
    assert "different: prompt 0, sample 0, " in ran.out
    assert words in ran.out


def nudge(result, position):
    """Move a logprob by its last bit."""
    import math
    from dataclasses import replace

    row = result.logprobs[position]
    token = result.token_ids[position]
    row[token] = replace(row[token], logprob=math.nextafter(row[token].logprob, 0.0))


def test_v52_the_target_as_its_own_draft_model(cli, tiny_path):
    """64 tokens as plain decoding; a chain of the target's own guesses is always accepted."""
    common = ("--prompt", COPY, "--raw", "--max-tokens", 64, "--ignore-eos", "--json")
    config = json.dumps(
        {"method": "draft_model", "num_branches": 1, "tree": "chain", "confidence_threshold": 0}
    )
    for temperature in (0, 0.8):
        settings = ("--temperature", temperature, "--seed", 2)
        words = ("--speculative-config", config, "--draft-model", tiny_path)
        (drafted,) = outputs(cli("generate", tiny_path, *common, *settings, *words))
        (plain,) = outputs(cli("generate", tiny_path, *common, *settings, "--drafter", "none"))
        assert drafted["token_ids"] == plain["token_ids"]
        assert len(drafted["token_ids"]) == 64
        counts = drafted["metrics"]["speculative_decoding"]
        assert counts["draft_acceptance_rate"] == 1.0
        assert counts["mean_acceptance_length"] > 4


def test_every_sampling_option_reaches_the_receipt(cli, tiny_path):
    ran = cli(
        *("generate", tiny_path, "--prompt", "hello", "--temperature", 0.5, "--top-p", 0.9),
        *("--top-k", 7, "--min-p", 0.01, "--seed", 3, "--max-tokens", 2, "--stop", "zq"),
        *("--stop", "qz", "--stop-token-id", 9, "--ignore-eos", "--json"),
    )
    receipt = outputs(ran)[0]["receipt"]
    assert receipt["seed"] == 3
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.01,
        "max_tokens": 2,
        "stop": ["zq", "qz"],
        "stop_token_ids": [9],
        "ignore_eos": True,
    }
    unset = json.loads(json.dumps(asdict(SamplingParams().resolve({}))))
    others = set(receipt["sampling"]) - set(given)
    assert {**receipt["sampling"], **given} == receipt["sampling"]
    assert {name: receipt["sampling"][name] for name in others} == {
        name: unset[name] for name in others
    }


def test_every_engine_option_is_taken(cli, tiny_path):
    ran = cli(
        *("generate", tiny_path, "--prompt", "hello", "--max-tokens", 4, "--drafter", "ngram"),
        *("--num-speculative-tokens", 3, "--tree", "chain", "--node-budget", 8),
        *("--prompt-lookup-max", 3, "--prompt-lookup-min", 2, "--numerics", "bfloat16"),
        *("--backend", "torch", "--device", "cpu", "--threads", 1, "--max-model-len", 64),
        *("--max-num-seqs", 2, "--max-num-batched-tokens", 64, "--kv-cache-memory", "8M"),
        *("--kv-store", "paged", "--no-prefix-caching", "--generation-config", "none", "--json"),
        *("--kv-cache-dtype", "int8"),
    )
    receipt = outputs(ran)[0]["receipt"]
    assert receipt["numerics"]["mode"] == "bfloat16"
    assert receipt["numerics"]["kv_format"] == "int8"
    assert receipt["max_model_len"] == 64


def test_generation_config_applies_to_unset_fields_and_shows(cli):
    model = apparatus.target(generation={"do_sample": True, "temperature": 0.25, "top_k": 5})
    words = ("generate", model, "--prompt", "hi", "--top-k", 9, "--max-tokens", 2, "--json")
    receipt = outputs(cli(*words))[0]["receipt"]
    assert receipt["generation_config"] == {"temperature": 0.25, "top_k": 5}
    assert (receipt["sampling"]["temperature"], receipt["sampling"]["top_k"]) == (0.25, 9)
    receipt = outputs(cli(*words, "--generation-config", "none"))[0]["receipt"]
    assert receipt["generation_config"] == {}
    assert receipt["sampling"]["temperature"] == 1.0


@pytest.mark.parametrize(
    "flags",
    [
        ("--max_tokens", 3, "--speculative-algorithm", "NGRAM", "--draft-max", 4),
        ("--max-new-tokens", 3, "--spec-type", "ngram", "--num-assistant-tokens", 4),
        ("--max-tokens=3", "--drafter=ngram", "--num_speculative_tokens=4"),
        ("--max-tokens", 3, "--speculative_config", '{"num_speculative_tokens": 4}'),
        ("--max-tokens", 3, "--enable-prefix-caching", "--temp", 0, "--sampling-seed", 1),
        ("--max-tokens", 3, "--disable-radix-cache", "--dtype", "float32", "--ctx-size", 64),
    ],
)
def test_names_of_other_engines(cli, tiny_path, flags):
    (one,) = outputs(cli("generate", tiny_path, "--prompt", COPY, *flags, "--json"))
    assert len(one["token_ids"]) == 3


def test_determinism_switch_of_others_is_taken_and_said(cli, tiny_path):
    flag = "--enable-deterministic-inference"
    ran = cli("generate", tiny_path, "--prompt", "a", "--max-tokens", 2, flag)
    assert ran.status == 0
    assert "always on" in ran.err


def test_config_file_sets_options_and_the_command_line_wins(cli, tiny_path, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text(
        f"model: {tiny_path}\nprompt: hello\nmax_tokens: 5\ntop-k: 4\nignore_eos: true\n"
        "raw: true\nspeculative_config: {method: ngram, num_speculative_tokens: 2}\n"
    )
    (one,) = outputs(cli("generate", "--config", file, "--top-k", 3, "--json"))
    assert one["prompt_token_ids"] == list(b"hello")
    assert len(one["token_ids"]) == 5
    assert one["receipt"]["sampling"]["top_k"] == 3
    assert one["receipt"]["sampling"]["ignore_eos"] is True
    ran = cli("generate", "--config", file, "--drafter", "none", "--json")
    assert ran.json["drafter"] == "none"


def test_v95_a_row_that_is_not_finite_is_an_error_of_its_request(cli, tiny_path, monkeypatch):
    import numpy as np

    from foreword.model.llama import Decoder

    forward = Decoder.forward

    def spoiled(self, batch, kv):
        return np.full_like(forward(self, batch, kv), np.nan)

    monkeypatch.setattr(Decoder, "forward", spoiled)
    ran = cli("generate", tiny_path, "--prompt", "a", "--max-tokens", 2)
    assert ran.status == 1
    assert ran.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in ran.err
