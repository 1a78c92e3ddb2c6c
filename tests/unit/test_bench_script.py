"""scripts/bench: what it says before anything is installed, built or measured."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="bash is not native there")


def run(*words: str, script: Path = ROOT / "scripts/bench", **env: str):
    command = [shutil.which("bash"), str(script), *words]
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=kept | env, timeout=60
    )


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout whose environment is this one, with nothing else on the PATH than coreutils."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/bench", tmp_path / "scripts/bench")
    shutil.copytree(ROOT / "bench", tmp_path / "bench")
    setup = tmp_path / "scripts/setup"
    setup.write_text(f'#!/bin/sh\necho "{sys.executable}"\n')
    setup.chmod(0o755)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "dirname", "cat", "sed", "mkdir", "rm"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    return tmp_path


def bench(checkout: Path, *words: str, **env: str):
    env = {"PATH": str(checkout / "tools"), "FOREWORD_CACHE": str(checkout / "cache"), **env}
    return run(*words, script=checkout / "scripts/bench", **env)


@pytest.mark.parametrize("words", [(), ("llamacp",)])
def test_what_can_be_measured_is_listed(words):
    ran = run(*words)
    assert (ran.returncode, ran.stdout) == (2, "")
    for name in ("kernels", "decode", "perplexity", "llamacpp", *words):
        assert name in ran.stderr


def test_help_installs_nothing():
    ran = run("--help")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "scripts/bench llamacpp [--model GGUF]" in ran.stdout
    assert not any(line.startswith("#") for line in ran.stdout.splitlines())


def test_without_clang_it_says_how_to_get_one(checkout):
    ran = bench(checkout, "llamacpp")
    assert (ran.returncode, ran.stdout) == (1, "")
    for words in ("needs clang", "apt-get install clang", "CC and CXX"):
        assert words in ran.stderr


def test_a_failed_build_does_not_look_finished(checkout):
    """The compiler asked for does not exist, so the build cannot succeed: nothing is stamped."""
    (checkout / "setup").mkdir()
    python = checkout / "setup/python"
    python.write_text(
        f'#!/bin/sh\ncase "$1" in -c) exec "{sys.executable}" "$@";; esac\n'
        'mkdir -p "$4/bin"; printf \'#!/bin/sh\\necho "no $CC"; exit 3\\n\' > "$4/bin/python"\n'
        'chmod +x "$4/bin/python"\n'
    )
    python.chmod(0o755)
    (checkout / "scripts/setup").write_text(f'#!/bin/sh\necho "{python}"\n')
    (checkout / "tools/chmod").symlink_to(shutil.which("chmod"))
    ran = bench(checkout, "llamacpp", CC="no-such-compiler")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "with no-such-compiler failed" in ran.stderr
    assert "no no-such-compiler" in ran.stderr
    assert not (checkout / "cache/bench/llamacpp/built").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--repeat", "0"), ("--repeat", "'0' is not a whole number >= 1")),
        (("--tokens", "few"), ("--tokens", "'few'")),
        (("--tokens", "1"), ("--tokens", "'1' is not a whole number >= 2")),
        (("--modle", "x"), ("unrecognized arguments", "--modle")),
        (("--model", "no/such.gguf"), ("no/such.gguf",)),
    ],
)
def test_bad_arguments_are_named(checkout, words, said):
    """With an environment for llama.cpp that looks built; it is never started."""
    peer = checkout / "cache/bench/llamacpp"
    peer.mkdir(parents=True)
    script = (ROOT / "scripts/bench").read_text()
    version = script.split("version=")[1].split()[0]
    (peer / "built").write_text(f"llama-cpp-python {version}\n")
    ran = bench(checkout, "llamacpp", *words)
    assert ran.returncode != 0
    assert "Traceback" not in ran.stderr
    for text in said:
        assert text in ran.stderr


def test_a_folder_is_refused_since_llamacpp_reads_gguf_only(checkout, tiny_path):
    peer = checkout / "cache/bench/llamacpp"
    peer.mkdir(parents=True)
    version = (ROOT / "scripts/bench").read_text().split("version=")[1].split()[0]
    (peer / "built").write_text(f"llama-cpp-python {version}\n")
    ran = bench(checkout, "llamacpp", "--model", str(tiny_path))
    assert ran.returncode == 1
    assert "is no .gguf file" in ran.stderr
