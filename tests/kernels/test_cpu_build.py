"""How the extension is compiled, and what its sources may not contain."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import foreword.kernels.cpu

NATIVE = Path(foreword.kernels.cpu.__path__[0]) / "native"
ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(file for file in NATIVE.iterdir() if file.suffix in (".h", ".cpp", ".inl"))


def test_float_arithmetic_is_compiled_as_written() -> None:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    flags = re.sub(r"#.*", "", text)
    assert "-ffp-contract=off" in flags
    for forbidden in ("fast-math", "march=native", "Ofast", "fassociative", "funsafe"):
        assert forbidden not in flags, forbidden
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


@pytest.mark.parametrize("unit", ["portable", "sampling_portable"])
def test_the_portable_unit_compiles_for_another_processor(unit: str, tmp_path: Path) -> None:
    compiler = shutil.which("aarch64-linux-gnu-g++")
    if compiler is None:
        pytest.skip("no aarch64-linux-gnu-g++ here")
    command = [compiler, "-std=c++17", "-O1", "-ffp-contract=off", "-c"]
    target = str(tmp_path / "unit.o")
    subprocess.run([*command, str(NATIVE / f"unit_{unit}.cpp"), "-o", target], check=True)
