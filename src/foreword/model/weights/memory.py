"""Refuse a model that will not fit before loading it."""

from __future__ import annotations

from foreword.errors import ConfigError


def require_memory(needed_bytes: int, available: int | None, what: str) -> None:
    """Raises ConfigError naming needed and available bytes when short.

    Where the system does not tell what is available (None), nothing is refused.
    """
    if available is not None and needed_bytes > available:
        raise ConfigError(
            f"{what} needs {gibibytes(needed_bytes)} of memory, {gibibytes(available)} is"
            " available; use a smaller model or context, or free memory"
        )


def gibibytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
