"""Is a regular expression from somebody's file safe to run on the names of modules?

Python's matcher tries every way to share a text out between repetitions: one inside another, or one
around alternatives, may take time without end, and many in a row take a power of the length. No
name of a module needs that.
"""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

from foreword.errors import WeightsError

LONGEST, MOST_REPEATS = 2000, 6  # characters; repetitions without a small limit

_PARSER = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")


def check_pattern(pattern: str, where: str, name: str) -> None:
    """Raises WeightsError naming the file and the field."""
    if len(pattern) > LONGEST:
        raise WeightsError(
            f"{where}: {name} has a pattern of {len(pattern)} characters; shorten it"
        )
    try:
        re.compile(pattern)
        repeats, nested = _repeats(_PARSER.parse(pattern), False)
    except (re.error, RecursionError, OverflowError) as error:
        raise WeightsError(f"{where}: {name} is no regular expression ({error})") from None
    if nested or repeats > MOST_REPEATS:
        what = "repeats a group that repeats or chooses" if nested else "has too many repetitions"
        raise WeightsError(f"{where}: {name} {what}, which may take for ever: {pattern!r:.80}")


def _repeats(part: Any, inside: bool) -> tuple[int, bool]:
    """Repetitions that may be long, and whether a choice lies inside of one."""
    found, nested = 0, False
    for operation, argument in part:
        many = False
        if str(operation).endswith("REPEAT"):
            many = argument[1] > 1
            found += many
            nested |= inside
        nested |= inside and str(operation) == "BRANCH"
        for below in _parts(argument):
            count, deeper = _repeats(below, inside or many)
            found, nested = found + count, nested or deeper
    return found, nested


def _parts(argument: Any) -> list[Any]:
    """The patterns inside an operation's argument."""
    if isinstance(argument, _PARSER.SubPattern):
        return [argument]
    if isinstance(argument, (tuple, list)):
        return [found for item in argument for found in _parts(item)]
    return []
