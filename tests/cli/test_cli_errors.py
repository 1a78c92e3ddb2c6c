"""Bad input: one line that names it and the remedy, a status that is not 0, no traceback."""

from __future__ import annotations

import json
import shutil
import time

import pytest

import apparatus

HELLO = ("--prompt", "hello", "--max-tokens", 2)


def check(ran, *words, status=1):
    """One line on stderr, nothing on stdout."""
    assert ran.status == status, (ran.status, ran.err)
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert "bug" not in ran.err
    for word in words:
        assert word in ran.err


USAGE = [
    (("--zzyzx", 1), ("unknown option --zzyzx", "generate --help")),
    (("--temprature", 1), ("--temprature", "did you mean --temperature?")),
    (("--logits_processors", "f"), ("--logits-processors", "not supported yet", "SamplingParams")),
    (("--lora", "adapter"), ("--lora", "not supported yet", "--lora-modules NAME=FOLDER")),
    (("--max-tokens", "many"), ("--max-tokens", "'many'", "8k or 32K")),
    (("--max-tokens", "1.5"), ("--max-tokens", "'1.5'")),
    (("--temperature", "hot"), ("--temperature", "'hot' is not a number")),
    (("--prompt-ids", "1,two"), ("--prompt-ids", "1,two", "like 1,2,3")),
    (("--tensor-parallel-size", 2), ("--tensor-parallel-size", "not supported yet")),
    (("-tp", 2), ("--tp", "not supported yet")),
    (("--load-format", "dummy"), ("--load-format", "not supported yet", "--numerics")),
    (("--lora-modules", "nameless"), ("--lora-modules", "'nameless' is not NAME=FOLDER")),
    (("extra",), ("extra", "generate --help")),
    (("--max-tokens",), ("--max-tokens",)),
]


@pytest.mark.parametrize(("flags", "words"), USAGE, ids=lambda value: str(value)[:40])
def test_usage_errors(cli, tiny_path, flags, words):
    check(cli("generate", tiny_path, *HELLO, *flags), *words, status=2)


REFUSED = [
    (("--top-p", 2), ("top_p", "between 0 and 1", "2")),
    (("--top-p", 0), ("top_p", "temperature to 0")),
    (("--temperature", -1), ("temperature", ">= 0", "-1")),
    (("--temperature", "nan"), ("temperature", "nan")),
    (("--top-k", -2), ("top_k", "-2")),
    (("--min-p", 1.5), ("min_p", "1.5")),
    (("--seed", -1), ("seed", "-1")),
    (("--n", 0), ("n must be", "0")),
    (("--logprobs", 100), ("logprobs", "100", "20")),
    (("--stop", ""), ("stop", "empty")),
    (("--max-tokens", 0), ("max_tokens", "0")),
    (("--drafter", "nosuch"), ("nosuch", "ngram", "none")),
    (("--tree", "nosuch"), ("nosuch", "best_first", "chain")),
    (("--kv-store", "nosuch"), ("nosuch", "paged")),
    (("--backend", "nosuch"), ("nosuch", "torch")),
    (("--device", "nosuch"), ("nosuch",)),
    (("--numerics", "float8"), ("numerics", "float8", "bfloat16")),
    (("--quantization", "awq"), ("quantization", "awq", "int8", "int4")),
    (("--generation-config", "x"), ("generation_config", "auto", "none")),
    (("--drafter", "model"), ("model", "--draft-model")),
    (("--drafter", "none", "--draft-model", "x"), ("none", "--draft-model")),
    (("--draft-model", "no-such-folder"), ("no-such-folder", "no such file")),
    (("--speculative-config", "{"), ("--speculative-config", "not valid JSON")),
    (("--speculative-config", "[1]"), ("--speculative-config", "object")),
    (("--speculative-config", '{"method": "ngram", "zap": 1}'), ("zap", "prompt_lookup_max")),
    (("--num-speculative-tokens", 0), ("num_speculative_tokens", "0")),
    (("--node-budget", -1), ("node_budget", "-1")),
    (("--max-model-len", "1M"), ("max_model_len", "1048576", "128")),
    (("--max-num-seqs", 0), ("max_num_seqs", "0")),
    (("--threads", 0), ("threads", "0")),
    (("--kv-cache-memory", "1k"), ("kv_cache_memory", "1000")),
    (("--kv-cache-dtype", "fp8"), ("kv_cache_dtype", "auto, float32, bfloat16, int8", "fp8")),
    (("--config", "no-such.yaml"), ("no-such.yaml", "YAML file")),
]


@pytest.mark.parametrize(("flags", "words"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused_options(cli, tiny_path, flags, words):
    check(cli("generate", tiny_path, *HELLO, *flags), *words)


PROMPTS = [
    (("--prompt", ""), "prompt 0 is empty"),
    (("--prompt-file", "no-such.txt"), "no-such.txt: cannot be read"),
    (("--prompt", "x" * 200), "128"),
    (("--prompt-ids", ""), "empty"),
    (("--prompt-ids", "1,9999"), "9999"),
    (("--prompt", "a\udcffb"), "surrogate"),
    (("--prompt", "a\udcffb", "--raw"), "surrogate"),
    (("--prompt", "a", "--system", "\udc80"), "surrogate"),
    (("--prompt", "a", "--stop", "\udc80"), "stop"),
    (("--prompt", "a", "--prompt-ids", "1"), "--prompt-ids cannot be mixed"),
    (("--prompt", "a", "--raw", "--system", "b"), "--system"),
    (("--prompt-ids", "1", "--chat"), "--prompt-ids"),
    (("--prompt", "a", "--date", "tomorrow"), "tomorrow"),
]


@pytest.mark.parametrize(("flags", "word"), PROMPTS, ids=lambda value: ascii(value)[:40])
def test_bad_prompts(cli, tiny_path, flags, word):
    check(cli("generate", tiny_path, *flags, "--max-tokens", 2), word)


def test_stdin_that_is_not_utf8(cli, tiny_path):
    check(cli("generate", tiny_path, stdin=b"abc\xff"), "stdin", "byte 3")


def test_no_command_argument_or_model(cli):
    check(cli("generate"), "argument", status=2)
    check(cli("genrate"), "genrate", status=2)
    check(cli("models"), "models --help", status=2)
    check(cli("convert", "a", "b"), "--to", status=2)


@pytest.fixture
def broken(tmp_path, tiny_path):
    """A copy of T to damage."""
    return shutil.copytree(tiny_path, tmp_path / "model")


def test_missing_model(cli, tmp_path):
    check(cli("generate", tmp_path / "nosuch", *HELLO), "nosuch", "smollm2-135m-instruct")


def test_unknown_architecture(cli, broken):
    config = json.loads((broken / "config.json").read_text())
    config |= {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    (broken / "config.json").write_text(json.dumps(config))
    for words in (("generate", broken, *HELLO), ("models", "info", broken)):
        check(cli(*words), "amba")


def test_truncated_and_missing_weights(cli, broken):
    file = broken / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-100])
    check(cli("generate", broken, *HELLO), "model.safetensors")
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    check(cli("generate", broken, *HELLO), "model.safetensors")
    file.unlink()
    check(cli("generate", broken, *HELLO), "model.safetensors")


def test_missing_and_damaged_tokenizer(cli, broken):
    (broken / "tokenizer.json").write_text("{}")
    check(cli("generate", broken, *HELLO), "tokenizer.json")
    (broken / "tokenizer.json").unlink()
    check(cli("generate", broken, *HELLO), "tokenizer.json")


def test_no_chat_template(cli, broken):
    file = broken / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["chat_template"]
    file.write_text(json.dumps(config))
    assert cli("generate", broken, *HELLO).status == 0, "raw is the default then"
    check(cli("generate", broken, *HELLO, "--chat"), "chat template", "--raw")
    check(cli("chat", broken, stdin="hi\n"), "chat template", "foreword generate")


def test_v50_a_draft_model_of_another_vocabulary(cli, tiny_path, broken):
    """Two tokens change places: an error that names the first id, before any weight is loaded."""
    file = broken / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(content))
    started = time.monotonic()
    ran = cli("generate", tiny_path, *HELLO, "--draft-model", broken)
    assert time.monotonic() - started < 5
    check(ran, str(broken), "at id 97", "'a'", "'b'")


def test_v50_a_pair_that_differs_in_unused_tokens_loads(cli, tiny_path):
    draft = apparatus.drafter_noise(num_tokens=400)
    ran = cli("generate", tiny_path, *HELLO, "--draft-model", draft, "--verify")
    assert ran.status == 0
    assert "identical" in ran.out


CONFIGS = [
    ("max_tokns: 3", ("max_tokns", "max-tokens")),
    ("tensor_parallel_size: 2", ("tensor-parallel-size", "not supported yet")),
    ("- a\n- b", ("mapping",)),
    ("a: [", ("not valid YAML",)),
]


@pytest.mark.parametrize(("text", "words"), CONFIGS)
def test_bad_config_files(cli, tiny_path, tmp_path, text, words):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    check(cli("generate", tiny_path, *HELLO, "--config", file), "options.yaml", *words)


def test_config_value_of_a_wrong_kind(cli, tiny_path, tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("top-k: many")
    check(cli("generate", tiny_path, *HELLO, "--config", file), "many", status=2)


def test_convert_refuses_what_it_cannot_do(cli, tiny_path, tmp_path, broken):
    check(cli("convert", tiny_path, tmp_path / "x", "--to", "onnx"), "--to", "onnx", "hf")
    check(cli("convert", tiny_path, tmp_path / "x", "--to", "hf", "--dtype", "int8"), "int8")
    check(cli("convert", tiny_path, broken, "--to", "hf"), str(broken), "empty folder")


def test_debug_shows_the_traceback_too(cli, tmp_path, monkeypatch):
    words = ("generate", tmp_path / "nosuch", *HELLO)
    assert "Traceback" not in cli(*words).err
    for ran in (cli(*words, "--debug"), cli("--debug", *words)):
        assert ran.status == 1
        assert "Traceback" in ran.err
        assert "error: " in ran.err
    monkeypatch.setenv("FOREWORD_DEBUG", "1")
    assert "Traceback" in cli(*words).err


def test_an_interrupt_ends_with_130(cli, tiny_path, monkeypatch):
    from foreword.engine import Engine

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "step", interrupted)
    ran = cli("generate", tiny_path, *HELLO)
    assert ran.status == 130
    assert "Traceback" not in ran.err


def test_a_bug_is_one_line_too(cli, tiny_path, monkeypatch):
    from foreword.engine import Engine

    def broken_step(self):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Engine, "step", broken_step)
    ran = cli("generate", tiny_path, *HELLO)
    assert ran.status == 1
    assert "ZeroDivisionError: oops; this is a bug" in ran.err
    assert "Traceback" not in ran.err
