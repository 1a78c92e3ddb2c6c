"""The checkout itself: scripts, licence, versions, and no path of one machine."""

from __future__ import annotations

import ast
import os
import re
import stat
import subprocess
from pathlib import Path

import pytest

from foreword.version import __version__

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    "scripts/setup",
    "scripts/run",
    "scripts/test",
    "scripts/check",
    "scripts/bench",
    ".ci/run",
]
ON_WINDOWS = os.name == "nt"


def tracked_files() -> list[Path]:
    """Files git tracks or would add; all text files of the tree where there is no git."""
    command = [
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]
    return [ROOT / name for name in run.stdout.split("\0") if name and (ROOT / name).is_file()]


def project_table(key: str) -> str:
    """The text of `key = "..."` in pyproject.toml (tomllib needs Python 3.11)."""
    found = re.search(rf'^{key} = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found, key
    return found[1]


@pytest.mark.skipif(ON_WINDOWS, reason="file modes and bash are not native there")
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_executable_strict_bash(name):
    path = ROOT / name
    assert path.stat().st_mode & stat.S_IXUSR
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_ci_runs_what_contributors_run():
    assert "scripts/test" in (ROOT / ".ci/run").read_text()
    assert "scripts/check" in (ROOT / "scripts/test").read_text()


@pytest.mark.skipif(ON_WINDOWS, reason="bash is not native there")
def test_setup_works_offline_from_any_folder_when_the_stamp_is_current(tmp_path):
    """A copied checkout whose stamp is current: no pip, no network, only the path is printed."""
    bin_folder = tmp_path / "copy" / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    python = bin_folder / "python"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo "unexpected: $*" >&2; exit 9; }\n')
    python.chmod(0o755)
    (tmp_path / "copy/scripts").mkdir()
    native = "src/foreword/kernels/cpu/native"
    content, sources = b"", []
    for folder in (native, "src/foreword/draft/native"):
        (tmp_path / "copy" / folder).mkdir(parents=True)
        sources += sorted(f"{folder}/{path.name}" for path in (ROOT / folder).iterdir())
    for name in ("pyproject.toml", "CMakeLists.txt", *sources):
        (tmp_path / "copy" / name).write_bytes((ROOT / name).read_bytes())
        content += (ROOT / name).read_bytes()
    (tmp_path / "copy/scripts/setup").write_bytes((ROOT / "scripts/setup").read_bytes())
    run = subprocess.run(["cksum"], input=content, capture_output=True, check=True)
    checksum = run.stdout.decode().strip()
    stamp = tmp_path / "copy/.venv/foreword-installed"

    def setup() -> subprocess.CompletedProcess[str]:
        command = ["bash", str(tmp_path / "copy/scripts/setup")]
        return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)

    stamp.write_text(f"{checksum} {tmp_path / 'copy'}\n")
    run = setup()
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.strip() == str(python)

    with (tmp_path / "copy" / native / "pack.cpp").open("a") as source:
        source.write("// another extension\n")
    run = setup()
    assert run.returncode != 0
    assert "unexpected: -m pip install" in run.stderr
    assert not stamp.exists(), "a failed install must not look current"


def test_licence_is_apache_and_declared():
    assert "Apache License" in (ROOT / "LICENSE").read_text()[:200]
    assert project_table("license") == "Apache-2.0"


def test_changelog_opens_with_the_version():
    releases = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(r"\d+\.\d+\.\d+", releases[0])
    assert releases[0] == __version__


def test_no_path_of_a_machine_in_the_files():
    """Neither this checkout's folder, nor the home folder, nor any /home or /Users path."""
    words = [re.escape(str(ROOT.parent) + "/"), r"/home/\w", r"/Users/\w"]
    if Path.home() != Path(Path.home().anchor):
        words.append(re.escape(str(Path.home()) + "/"))
    pattern = re.compile("|".join(words).encode())
    this = Path(__file__).resolve()
    found = [
        f"{path.relative_to(ROOT)}: {match[0].decode()}"
        for path in tracked_files()
        if path != this and (match := pattern.search(path.read_bytes()))
    ]
    assert not found


def test_no_large_file_is_tracked():
    large = [str(path) for path in tracked_files() if path.stat().st_size > 2_000_000]
    assert not large


def test_each_test_file_defines_a_test():
    empty = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        if not any(isinstance(node, functions) and node.name.startswith("test") for node in nodes):
            empty.append(path.name)
    assert not empty


def test_sources_parse_as_python_3_10():
    """What ruff does not see: the grammar of the oldest Python that is promised."""
    assert project_table("requires-python") == ">=3.10"
    for path in sorted((ROOT / "src").rglob("*.py")):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 10))
