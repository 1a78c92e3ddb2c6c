"""Backend and numerics when nobody names them: a table, and what is said about it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import apparatus
from foreword import build
from foreword.config import EngineConfig
from foreword.errors import ConfigError, KernelUnavailable
from foreword.kernels import _defaults
from foreword.kernels.cpu import backend as cpu
from foreword.model.weights.open import open_checkpoint
from foreword.model.weights.quantize import quantised
from quantised_files import quantised_gguf

DOCS = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"


@pytest.mark.parametrize(
    ("isa", "groups", "numerics"),
    [
        ("amx", (), "bfloat16"), ("amx", (32,), "a8"), ("amx", (16, 128), "a8"),
        ("amx", (64,), "a8"), ("amx", (128, 4096), "a8"),
        ("avx512", (), "bfloat16"), ("avx512", (16,), "a8"), ("avx512", (128,), "a8"),
        ("avx2", (), "float32"), ("avx2", (32,), "a8"), ("avx2", (896,), "a8"),
        ("portable", (), "float32"), ("portable", (16,), "a8"), ("portable", (64,), "a8"),
        (None, (), "float32"), (None, (32,), "float32"),
    ],
)  # fmt: skip
def test_the_table(isa: str | None, groups: tuple[int, ...], numerics: str) -> None:
    assert _defaults.default_numerics(isa, groups) == numerics


def test_the_table_is_the_documented_one() -> None:
    rows = [line.split("|")[1:-1] for line in DOCS.read_text(encoding="utf-8").splitlines()
            if line.startswith("| `")]  # fmt: skip
    cells = {row[0].strip(" `"): tuple(cell.strip(" `") for cell in row[1:]) for row in rows}
    for isa, modes in _defaults.TABLE.items():
        assert cells[isa] == (modes.floats, modes.integers)
    assert set(_defaults.TABLE) == set(cpu.ISAS)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [("Q4_1", {32}), ("int8", {64, 128}), ("int4", {32}), ("", set())],
)
def test_groups_of_a_checkpoint(kind: str, groups: set[int], tmp_path: Path) -> None:
    """They are known without reading a tensor."""
    if kind.startswith("Q"):
        path = tmp_path / "m.gguf"
        checkpoint = open_checkpoint(quantised_gguf(path, apparatus.target(), kind))
    else:
        checkpoint = open_checkpoint(apparatus.target())
        checkpoint = quantised(checkpoint, kind) if kind else checkpoint
    assert checkpoint.groups() == groups
    for name in checkpoint.names():
        if checkpoint.is_grouped(name):
            assert checkpoint.tensors[name].group == checkpoint.weight(name).group


def without_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise KernelUnavailable("backend cpu needs its compiled extension; install a C++ compiler")

    monkeypatch.setattr(cpu, "load_native", missing)
    monkeypatch.setattr(_defaults, "load_native", missing)


def test_without_the_extension_torch_runs_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_extension(monkeypatch)
    config = EngineConfig(str(apparatus.target()), threads=1, max_model_len=32)
    with caplog.at_level(logging.WARNING, "foreword"):
        built = build.build(config)
    built.close()
    assert (built.config.backend, built.config.numerics, built.isa) == ("torch", "float32", None)
    (said,) = caplog.messages
    assert "torch" in said
    assert "compiler" in said
    for asked in ({"backend": "cpu"}, {"isa": "avx2"}):
        with pytest.raises(KernelUnavailable, match="extension") as caught:
            build.build(EngineConfig(str(apparatus.target()), **asked))
        assert "\n" not in str(caught.value)
    assert _defaults.describe()["backend"] == "torch"


def test_the_message_of_a_missing_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(cpu.importlib, "import_module", fail)
    with pytest.raises(KernelUnavailable, match=r"pip install \.") as caught:
        cpu.load_native()
    assert "--backend torch" in str(caught.value)


def test_isa_is_for_backend_cpu() -> None:
    with pytest.raises(ConfigError, match="backend cpu, not torch"):
        EngineConfig("x", backend="torch", isa="avx2")
    assert build.with_backend(EngineConfig("x", isa="avx2")).backend == "cpu"
    assert _defaults.default_backend("cuda") == "torch"


class OldMachine:
    """An extension on a processor with AVX2 and no more."""

    @staticmethod
    def has_isa(name: str) -> bool:
        return name in ("portable", "avx2")

    @staticmethod
    def best_isa() -> str:
        return "avx2"


def test_what_the_machine_lacks_is_an_error_that_names_its_best() -> None:
    with pytest.raises(KernelUnavailable, match="has no amx; its best is avx2"):
        cpu.choose_isa(OldMachine, "amx")
    with pytest.raises(KernelUnavailable, match="portable, avx2, avx512, amx"):
        cpu.choose_isa(OldMachine, "sse9")
    assert cpu.choose_isa(OldMachine, None) == "avx2"
    assert cpu.choose_isa(OldMachine, "portable") == "portable"


@pytest.mark.parametrize("asked", [None, "bfloat16", "float32"])
def test_v113_a_processor_without_bfloat16(
    asked: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """V113: float32 by default, with a line; bfloat16 by name is honoured, with a line."""
    monkeypatch.setattr(_defaults, "load_native", lambda: OldMachine)
    config = EngineConfig(str(apparatus.target(dtype="bfloat16")), numerics=asked)
    with caplog.at_level(logging.WARNING, "foreword"):
        decided, _ = build.open_target(config)
    assert decided.backend == "cpu"
    assert decided.numerics == (asked or "float32")
    said = " ".join(caplog.messages)
    assert bool(said) == (asked != "float32")
    if said:
        assert "avx2" in said
        assert "bfloat16" in said
    assert _defaults.describe()["bfloat16_is_computed_in"].startswith("float32")
