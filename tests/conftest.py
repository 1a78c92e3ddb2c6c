"""Fixtures over `apparatus`, one compute thread, and a session that refuses empty test files.

Property tests are derandomised: a run repeats exactly, and a failure is a failure everywhere. What
the exactness tests compared is printed at the end, added up over the processes that ran them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

import apparatus

torch.set_num_threads(1)
settings.register_profile("foreword", deadline=None, derandomize=True, database=None)
settings.load_profile("foreword")


def host_settings() -> dict[str, object]:
    """Switches of the process that a pass may pin, and must put back."""
    return {
        "threads": torch.get_num_threads(),
        "matmul precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "denormals kept": bool(torch.tensor([1e-40]).mul(0.5).ne(0)),
    }


@pytest.fixture(autouse=True)
def host_settings_are_put_back() -> Iterator[None]:
    before = host_settings()
    yield
    assert host_settings() == before, "a test, or the code under it, left a switch flipped"


@pytest.fixture(scope="session")
def tiny_path() -> Path:
    """T, the target of the tiny pair: Llama, float32."""
    return apparatus.target()


@pytest.fixture(scope="session")
def tiny_bfloat16_path() -> Path:
    """T with its weights rounded to bfloat16."""
    return apparatus.target(dtype="bfloat16")


@pytest.fixture(scope="session")
def drafter_noise_path() -> Path:
    """D_noise: agrees with T about half of the time."""
    return apparatus.drafter_noise()


@pytest.fixture(scope="session")
def drafter_random_path() -> Path:
    """D_rand: agrees with T hardly ever."""
    return apparatus.drafter_random()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct file."""
    return apparatus.smollm2_path()


_files: set[str] = set()
_tests_in_file: Counter[str] = Counter()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.passed and report.nodeid.endswith(".py"):
        _files.add(report.nodeid)


def pytest_itemcollected(item: pytest.Item) -> None:
    _tests_in_file[item.nodeid.split("::")[0]] += 1


def pytest_report_collectionfinish(items: list[pytest.Item]) -> str:
    """Print the counts; fail when a test file that was looked into holds no test."""
    empty = sorted(file for file in _files if not _tests_in_file[file])
    if empty:
        raise pytest.UsageError(f"no test collected from {', '.join(empty)}")
    found = sum(_tests_in_file.values())
    return f"{found} tests found in {len(_files)} files, {len(items)} selected"


_compared: dict[str, Counter[str]] = {}  # file -> what -> how many


def _add_compared(counts: dict[str, dict[str, int]]) -> None:
    for name, numbers in counts.items():
        _compared.setdefault(name, Counter()).update(numbers)


def pytest_sessionfinish(session: pytest.Session) -> None:
    harness = sys.modules.get("harness")
    if harness is None:
        return
    counts = {name: asdict(compared) for name, compared in harness.COMPARED.items()}
    sent = getattr(session.config, "workeroutput", None)  # of a worker process, for its parent
    if sent is None:
        _add_compared(counts)
    else:
        sent["compared"] = counts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _add_compared(getattr(node, "workeroutput", {}).get("compared", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _compared:
        return
    terminalreporter.section("compared with plain decoding alone, bit for bit")
    for name, numbers in [*sorted(_compared.items()), ("all", sum(_compared.values(), Counter()))]:
        listed = ", ".join(
            f"{numbers[what]} {what}" for what in ("outputs", "positions", "logprobs")
        )
        terminalreporter.line(f"{name}: {listed} identical")
