"""Typed reading of a checkpoint's key-value data; every error names the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foreword.errors import WeightsError


class Fields:
    """A view on one mapping. `where` (a file name) starts each message, `prefix` each key.

    The plain readers require the field; the `optional_` ones return None for absent or null.
    """

    def __init__(self, raw: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.raw, self.where, self.prefix = raw, where, prefix

    def get(self, name: str) -> Any:
        return self.raw.get(self.prefix + name)

    def fail(self, name: str, wanted: str) -> WeightsError:
        value = self.get(name)
        found = "it is absent" if value is None else f"got {value!r:.60}"
        return WeightsError(f"{self.where}: {self.prefix}{name} must be {wanted}; {found}")

    def integer(self, name: str) -> int:
        value = self.optional_integer(name)
        if value is None:
            raise self.fail(name, "a whole number >= 1")
        return value

    def optional_integer(self, name: str) -> int | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(name, "a whole number >= 1")
        return value

    def number(self, name: str) -> float:
        value = self.optional_number(name)
        if value is None:
            raise self.fail(name, "a number > 0")
        return value

    def optional_number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(name, "a number > 0")
        if not math.isfinite(value) or value <= 0:
            raise self.fail(name, "a number > 0")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.optional_flag(name)
        return default if value is None else value

    def optional_flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises WeightsError naming a file that is absent or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        raise WeightsError(f"{path}: not valid JSON; download the file again") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path}: must hold a JSON object; download the file again")
    return content
