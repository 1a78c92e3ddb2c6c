"""models, env, convert, the top level, and starting fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import apparatus
import foreword
from weight_files import tiny_gguf

SOURCE = Path(foreword.__file__).resolve().parents[1]


def test_models_list(cli):
    ran = cli("models", "list")
    assert ran.status == 0
    assert "smollm2-135m-instruct" in ran.out
    (one,) = cli("models", "list", "--json").json["models"]
    assert one["name"] == "smollm2-135m-instruct"
    assert one["size"] == 98_362_432


def test_models_pull_of_a_path_checks_it_and_prints_it(cli, tiny_path):
    assert cli("models", "pull", tiny_path).out.strip() == str(tiny_path)
    found = cli("models", "pull", tiny_path, "--json").json
    assert found["path"] == str(tiny_path)
    assert found["bytes"] > 400_000


def test_models_info(cli, tiny_path):
    from foreword.model.weights.open import open_checkpoint

    found = cli("models", "info", tiny_path, "--json").json
    assert found["fingerprint"] == open_checkpoint(tiny_path).fingerprint()
    assert found["context"] == 128
    assert found["eos_ids"] == [apparatus.ENDOFTEXT]
    assert found["chat_template"] is True
    assert found["tensor_types"] == {"F32": 20}
    assert found["config"]["num_layers"] == 2
    memory = found["memory"]
    assert set(memory) == {"float32", "bfloat16", "a16", "a8"}
    assert memory["float32"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert memory["bfloat16"]["weight_bytes"] < memory["float32"]["weight_bytes"]
    text = cli("models", "info", tiny_path)
    assert text.status == 0
    for word in (found["fingerprint"], "tensor_types", "KiB", "chat_template"):
        assert word in text.out


def test_env(cli, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = cli("env", "--json").json
    assert found["foreword"] == foreword.__version__
    assert found["threads_usable"] == 1
    assert {"reference", "torch"} <= set(found["backends"])
    assert {"none", "ngram", "model"} <= set(found["drafters"])
    assert found["packages"]["torch"]
    assert found["torch"]["flush_denormal"] is False
    text = cli("env").out
    assert found["machine"] in text
    assert "OMP_NUM_THREADS" in text


def test_version(cli):
    ran = cli("--version")
    assert (ran.status, ran.out) == (0, f"foreword {foreword.__version__}\n")


def test_help_of_everything(cli):
    for words in ((), ("--help",), ("-h",)):
        ran = cli(*words)
        assert ran.status == 0
        assert "generate" in ran.out
    for command in ("generate", "chat", "audit", "convert", "env", "models"):
        ran = cli(command, "--help")
        assert ran.status == 0
        assert "--help" in ran.out


def test_help_and_option_errors_import_no_torch():
    script = (
        "import sys\n"
        "from foreword.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "assert run(['generate', '--help']) == 0\n"
        "assert run(['generate', 'x', '--top-q', '1']) == 2\n"
        "assert run(['generate', 'x', '--prompt', 'a', '--top-p', '2']) == 1\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    ran = python("-c", script)
    assert ran.returncode == 0, ran.stderr


def test_the_module_runs_and_exits_with_the_status():
    ran = python("-m", "foreword", "--version")
    assert (ran.returncode, ran.stdout) == (0, f"foreword {foreword.__version__}\n")
    assert python("-m", "foreword", "--nope").returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently there")
def test_a_reader_that_leaves_early_is_no_error():
    command = [sys.executable, "-m", "foreword", "--help"]
    read, write = os.pipe()
    os.close(read)
    ran = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, env=environment(), check=False
    )
    os.close(write)
    assert b"Traceback" not in ran.stderr
    assert b"Exception" not in ran.stderr


def python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


def token_ids(cli, model):
    words = ("--prompt", "abcab", "--seed", 4, "--max-tokens", 10, "--ignore-eos", "--json")
    ran = cli("generate", model, *words)
    assert ran.status == 0, ran.err
    (one,) = ran.json["outputs"]
    return one["prompt_token_ids"], one["token_ids"]


def test_convert_a_folder_gives_the_same_ids(cli, tiny_path, tmp_path):
    ran = cli("convert", tiny_path, tmp_path / "out", "--to", "hf")
    assert ran.status == 0
    assert ran.out.strip() == str(tmp_path / "out")
    assert token_ids(cli, tmp_path / "out") == token_ids(cli, tiny_path)


def test_convert_a_gguf_file_gives_the_same_ids_and_template(cli, tiny_path, tmp_path):
    """Through tokenizer.json written anew: a prompt with a merge and control tokens."""
    tokens = [*apparatus.byte_characters(), "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    kinds = [1] * 256 + [3] * 3
    tokens += [f"<t{number}>" for number in range(len(tokens), apparatus.VOCAB - 1)] + ["ab"]
    kinds += [4] * (apparatus.VOCAB - 1 - len(kinds)) + [1]
    file = tiny_gguf(
        tmp_path / "tiny.gguf",
        tiny_path,
        tokenizer__ggml__model="gpt2",
        tokenizer__ggml__pre="gpt-2",
        tokenizer__ggml__tokens=tokens,
        tokenizer__ggml__token_type=kinds,
        tokenizer__ggml__merges=["a b"],
        tokenizer__ggml__eos_token_id=apparatus.IM_END,
        tokenizer__chat_template=apparatus.CHAT_TEMPLATE,
    )
    found = cli("convert", file, tmp_path / "out", "--to", "hf", "--json").json
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(found["files"])
    prompt, ids = token_ids(cli, file)
    assert apparatus.VOCAB - 1 in prompt, "the merge applies"
    assert token_ids(cli, tmp_path / "out") == (prompt, ids)


def test_convert_rounds_when_asked(cli, tiny_path, tmp_path):
    assert (
        cli("convert", tiny_path, tmp_path / "b", "--to", "hf", "--dtype", "bfloat16").status == 0
    )
    assert cli("models", "info", tmp_path / "b", "--json").json["tensor_types"] == {"BF16": 20}


def test_audit_hands_over_its_options(cli, tiny_path, monkeypatch):
    from foreword.audit import command

    seen = []
    monkeypatch.setattr(command, "run", lambda options: seen.append(options) or 1)
    ran = cli(
        *("audit", tiny_path, "--quick", "--prompt", "a", "--prompt", "b", "--json"),
        *("--numerics", "bfloat16", "--threads", 2, "--drafters", "ngram,none", "--seed", "8k"),
    )
    assert ran.status == 1
    (options,) = seen
    assert (options.model, options.quick, options.json) == (str(tiny_path), True, True)
    assert (options.prompt, options.numerics, options.threads) == (["a", "b"], "bfloat16", 2)
    assert (options.drafters, options.seed, options.replay) == ("ngram,none", 8000, None)


def test_audit_distribution_hands_over_its_options(cli, tiny_path, monkeypatch):
    from foreword.audit import distribution_command

    seen = []
    monkeypatch.setattr(distribution_command, "run", lambda options: seen.append(options) or 0)
    ran = cli(
        *("audit", tiny_path, "--distribution", "--acceptance", "typical:epsilon=0.2"),
        *("--acceptance", "ratio", "--prompts", "p.txt", "--scorer", "a:b"),
        *("--temperature", "0.7", "--draws", "1k"),
    )
    assert ran.status == 0
    (options,) = seen
    assert options.acceptance == ["typical:epsilon=0.2", "ratio"]
    assert (str(options.prompts), options.scorer) == ("p.txt", "a:b")
    assert (options.temperature, options.draws) == (0.7, 1000)


@pytest.mark.parametrize("name", ["acceptance", "prompts", "scorer", "temperature", "draws"])
def test_audit_options_of_distribution_do_nothing_elsewhere(cli, tiny_path, name):
    ran = cli("audit", tiny_path, f"--{name}", "1")
    assert ran.status == 1
    assert f"--{name} goes with --distribution" in ran.err


def test_what_generate_writes_is_what_audit_replays(cli, tiny_path, tmp_path):
    words = ("--prompt", "abcabc", "--n", 2, "--max-tokens", 8, "--ignore-eos", "--json")
    file = tmp_path / "result.json"
    file.write_text(cli("generate", tiny_path, *words).out)
    ran = cli("audit", tiny_path, "--replay", file)
    assert ran.status == 0, ran.err
    assert "identical" in ran.out.splitlines()[-1]
    file.write_text(file.read_text().replace('"temperature": 1.0', '"temperature": 0.5'))
    assert cli("audit", tiny_path, "--replay", file).status == 1
