"""Every planted fault is reported by the audit, and nothing is reported without one.

The settings are a covering array over fewer values than the command's, the model is tiny and the
outputs are short: what is proved is that the machinery sees each kind of fault at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mutants import MORE, NAMED_BY_THE_CONTRACT

import apparatus
from foreword.audit.cases import Case, make_cases
from foreword.audit.compare import LOGIC, NUMERICS
from foreword.audit.grid import Axes, covering_array
from foreword.audit.laboratory import Laboratory
from foreword.audit.run import Report, audit
from foreword.audit.settings import THOROUGH, Setting
from foreword.config import EngineConfig
from foreword.sample.sampler import GumbelSampler

AXES: Axes = {
    **THOROUGH,
    "drafter": ("noisy", "none", "model"),
    "nodes": (15, 7),
    "block": (4,),
    "batch": (3,),
    "rows": (64, 5),
    "preemption": ("none", "memory"),
    "threads": (1, 2),
}
SETTINGS = [Setting.of(row) for row in covering_array(AXES)]
MAX_TOKENS = 10

# Rounding faults; all others must be called logic errors.
ROUNDING_FAULTS = {"unrounded same-pass key", "M-dependent matmul", "thread-dependent matmul"}
IN_BFLOAT16 = {"unrounded same-pass key"}
# The replay cannot see these, since plain decoding has the same fault: the stream check does.
STREAM_FAULTS = {
    "noise ignores the position": "position",
    "noise ignores the seed": "seed",
    "shared random stream": "stream",
}


@pytest.fixture(scope="module")
def laboratories() -> Iterator[dict[str, Laboratory]]:
    loaded = {numerics: load(numerics) for numerics in ("float32", "bfloat16")}
    yield loaded
    for laboratory in loaded.values():
        laboratory.close()


def load(numerics: str) -> Laboratory:
    path = apparatus.target(num_layers=1, dtype=numerics, max_position=256)
    config = EngineConfig(model=str(path), numerics=numerics, backend="torch", threads=1)
    laboratory = Laboratory(config)
    laboratory.sampler = GumbelSampler()  # the specification: mutants break what it is made of
    return laboratory


def cases(laboratory: Laboratory) -> list[Case]:
    made = make_cases(
        laboratory.tokenizer.encode,
        (),
        max_tokens=MAX_TOKENS,
        context=laboratory.context,
        eos_ids=frozenset(),
        seed=1,
        every=False,
    )
    return made[:12]  # greedy, penalised, sampled, mirostat


def run(laboratory: Laboratory, stop_early: bool = True) -> Report:
    return audit(laboratory, cases(laboratory), SETTINGS, stop_early=stop_early)


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_without_a_mutant_everything_is_identical(laboratories, numerics):
    report = run(laboratories[numerics])
    assert report.identical, report
    assert report.num_settings == len(SETTINGS)
    assert report.num_preemptions > 0
    assert report.num_prefix_hits > 0
    assert 0 < report.num_accepted < report.num_drafted


@pytest.mark.parametrize("name", [*NAMED_BY_THE_CONTRACT, *MORE])
def test_the_audit_catches(name: str, laboratories, monkeypatch: pytest.MonkeyPatch):
    laboratory = laboratories["bfloat16" if name in IN_BFLOAT16 else "float32"]
    (NAMED_BY_THE_CONTRACT | MORE)[name](monkeypatch)
    report = run(laboratory)
    assert not report.identical, f"{name}: {report.num_outputs} outputs were found identical"
    if name in STREAM_FAULTS:
        assert any(STREAM_FAULTS[name] in fault for fault in report.faults)
    else:
        assert not report.faults
        assert report.differences[0].verdict == (NUMERICS if name in ROUNDING_FAULTS else LOGIC)


def test_the_list_of_mutants_is_the_contract_s():
    """The seven the design names; a shifted position is tried in the rope and in the noise."""
    assert len(NAMED_BY_THE_CONTRACT) == 8
