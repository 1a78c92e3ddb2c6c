"""Prints what the exactness tests compared, and leaves the counts in pytest's cache for the
docs."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from harness import COMPARED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not COMPARED:
        return
    terminalreporter.section("compared with plain decoding alone, bit for bit")
    for name, compared in sorted(COMPARED.items()):
        numbers = asdict(compared)
        terminalreporter.line(
            f"{name}: " + ", ".join(f"{value} {what}" for what, value in numbers.items())
        )
    total = [sum(getattr(one, name) for one in COMPARED.values()) for name in numbers]
    terminalreporter.line("all: {} outputs, {} positions, {} logprobs identical".format(*total))
    cache = getattr(terminalreporter.config, "cache", None)  # absent without the plugin
    if cache is not None:
        cache.set("foreword/compared", {name: asdict(one) for name, one in COMPARED.items()})
