"""Numbers as people type them: `32K`, `8k`, `2G`, `1,2,3`. Knows no option by name."""

from __future__ import annotations

import re
from decimal import Decimal

import typer

_NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)([kKmMgGtT]?)(i?B)?")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def whole_number(value: str | int) -> int:
    """`8k` is 8000 and `8K` is 8192, as in vLLM; `GiB` is always binary. Raises BadParameter."""
    text = str(value).strip()
    match = _NUMBER.fullmatch(text)
    if match is not None:
        digits, suffix, unit = match.groups()
        binary = suffix.isupper() or unit == "iB"
        result = Decimal(digits) * (1024 if binary else 1000) ** _POWERS[suffix.lower()]
        if result == result.to_integral_value():
            return int(result)
    raise typer.BadParameter(f"{text!r} is not a whole number; write it like 512, 8k or 32K")


def decimal(value: str | float) -> float:
    """`0.8`. Raises BadParameter; which values make sense is for the library to say."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise typer.BadParameter(f"{value!r} is not a number; write it like 0.8") from None


def token_ids(value: str | list[int]) -> list[int]:
    """`1,2,3` or `[1, 2, 3]` as ids. Raises BadParameter."""
    if not isinstance(value, str):
        return list(value)
    words = value.strip().removeprefix("[").removesuffix("]").replace(",", " ").split()
    if not all(re.fullmatch(r"\d+", word) for word in words):
        raise typer.BadParameter(f"{value!r} is not a list of token ids; write it like 1,2,3")
    return [int(word) for word in words]


def size_text(num_bytes: int) -> str:
    """98362432 -> "93.8 MiB"."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
