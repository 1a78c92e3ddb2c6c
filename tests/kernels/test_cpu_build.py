"""How the extension is compiled, and what its sources may not contain."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import foreword.kernels.cpu
from foreword.kernels.cpu.backend import load_native

NATIVE = Path(foreword.kernels.cpu.__file__).parent / "native"
ROOT = Path(__file__).resolve().parents[2]
PORTABLE = Path(__file__).parent / "native" / "portable_check.cpp"
FORBIDDEN = re.compile(r"fast-math|march=native|Ofast|fassociative|funsafe|mtune=native|/fp:fast")
SOURCES = sorted(file for file in NATIVE.iterdir() if file.suffix in (".h", ".cpp", ".inl"))


def test_float_arithmetic_is_compiled_as_written() -> None:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    flags = re.sub(r"#.*", "", text)
    assert "-ffp-contract=off" in flags
    assert not FORBIDDEN.search(flags)
    assert "/fp:precise" in flags


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_no_step_that_saturates(file: Path) -> None:
    """maddubs and packs narrow with saturation; dpbusds and its like saturate the sum."""
    code = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
    assert not re.search(r"_mm\d*_(maddubs|adds|subs|packs|packus|dpbusds|dpwssds)_", code)
    assert "fast-math" not in code
    assert "optimize(" not in code


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.name)
def test_units_share_no_inline_code(file: Path) -> None:
    """Kernels include no C++ library: the linker merges equal templates of different units."""
    if file.suffix != ".inl" and not file.name.startswith(("simd_", "unit_")):
        return
    code = file.read_text(encoding="utf-8")
    assert "std::" not in code
    assert set(re.findall(r"#include <(\w+)", code)) <= {"math", "string", "immintrin"}


def test_the_commands_that_were_run() -> None:
    """Of every build folder in the checkout: what CMake gave the compiler for each of our files."""
    found = sorted(ROOT.glob("build/*/compile_commands.json"))
    if not found:
        pytest.skip("no build folder here; an editable install leaves one")
    for file in found:
        commands = {
            Path(entry["file"]).name: entry["command"]
            for entry in json.loads(file.read_text(encoding="utf-8"))
            if Path(entry["file"]).parent.name == "native"
        }
        assert {"unit_portable.cpp", "pack.cpp", "pass.cpp", "threads.cpp"} <= set(commands)
        for name, command in commands.items():
            assert not FORBIDDEN.search(command), (name, command)
            # The Python modules compute nothing.
            exact = "-ffp-contract=off" in command or "/fp:precise" in command
            assert exact or name in ("module.cpp", "adapters_module.cpp", "sampling_module.cpp"), (
                name
            )
        plain = commands["unit_portable.cpp"]
        assert not re.search(r"-m(avx|fma|amx|f16c)|/arch", plain), plain


def build(target: Path, compiler: str, *flags: str) -> Path:
    """portable_check.cpp and every source that knows no Python."""
    names = ("adapters", "arena", "pack", "pass", "schedule", "threads", "isa")
    sources = [NATIVE / f"{name}.cpp" for name in names]
    sources += [NATIVE / "unit_portable.cpp", NATIVE / "unit_adapters_portable.cpp", PORTABLE]
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-pthread", f"-I{NATIVE}"]
    subprocess.run([*command, *flags, *map(str, sources), "-o", str(target)], check=True)
    return target


def test_the_portable_sources_serve_another_processor(tmp_path: Path) -> None:
    """Compiled for aarch64; where an emulator is installed, its numbers are this processor's to
    the bit: integers, float32 sums, exponentials."""
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        pytest.skip("no aarch64-linux-gnu-g++ here (Debian: g++-aarch64-linux-gnu)")
    theirs = build(tmp_path / "theirs", compiler, "-static")
    emulator, native = shutil.which("qemu-aarch64"), shutil.which("c++")
    if emulator is None or native is None:
        return
    ours = build(tmp_path / "ours", native)
    wanted = subprocess.run([str(ours)], capture_output=True, text=True, check=True).stdout
    got = subprocess.run([emulator, str(theirs)], capture_output=True, text=True, check=True).stdout
    assert wanted.count("\n") >= 10
    assert got == wanted


def test_the_extension_is_built_where_there_is_a_compiler() -> None:
    """Else every test of it would be skipped, and nobody would notice."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler here")
    assert load_native().has_isa("portable")
