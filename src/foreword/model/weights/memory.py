"""Refuse a model that will not fit before loading it."""

from __future__ import annotations

from foreword.errors import ConfigError
from foreword.machine import available_memory


def require_memory(needed_bytes: int, what: str) -> None:
    """Raises ConfigError naming needed and available memory (cgroup limit included) when short.

    Where the system does not tell (Windows), nothing is refused.
    """
    available = available_memory()
    if available is not None and needed_bytes > available:
        raise ConfigError(
            f"{what} needs {gibibytes(needed_bytes)} of memory, {gibibytes(available)} is"
            " available; use a smaller model or context, or free memory"
        )


def gibibytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
