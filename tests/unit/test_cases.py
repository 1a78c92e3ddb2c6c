"""Every known failure mode V01..V115 has a test named after it, or is listed as pending.

An id counts as tested when a test function cites it in its name (`test_v83_...`) or when the
docstring of a test function or test class does (`V83`, `V18-V20`). `tests/pending.txt` holds what
waits for a later stage; a case that this stage owes must be tested whatever is listed.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PENDING = TESTS / "pending.txt"
ALL = range(1, 116)
LATER_STAGES = range(3, 7)
OWED_NOW = "V01-V30 V34-V39 V41-V45 V49-V50 V52-V72 V74-V75 V80-V95 V113-V115"

IN_TEXT = re.compile(r"\bV(\d{2,3})(?:-V(\d{2,3}))?\b")
IN_NAME = re.compile(r"(?<![a-z0-9])v(\d{2,3})(?![0-9])")


def ids_in_text(text: str) -> set[int]:
    """Ids cited as V83 or as a range V18-V20."""
    found: set[int] = set()
    for first, last in IN_TEXT.findall(text):
        found.update(range(int(first), int(last or first) + 1))
    return found


def cited(source: str) -> set[int]:
    """Ids cited by the test functions and test classes of one file."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if node.name.lower().startswith("test"):
            found.update(int(number) for number in IN_NAME.findall(node.name.lower()))
            found |= ids_in_text(ast.get_docstring(node) or "")
    return found


def where_tested() -> dict[int, list[str]]:
    where: dict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        if path != Path(__file__).resolve():
            for case in cited(path.read_text(encoding="utf-8")):
                where[case].append(path.relative_to(TESTS).as_posix())
    return where


def pending(text: str) -> list[tuple[int, int, str]]:
    """(case, stage, what is missing) for each line; AssertionError names a malformed line."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"V(\d{2,3}) \| (\d+) \| (\S.*)", line)
        assert match, f"pending.txt:{number}: want 'V-id | stage | what is missing', got {line!r}"
        rows.append((int(match[1]), int(match[2]), match[3]))
    return rows


def listed() -> list[tuple[int, int, str]]:
    return pending(PENDING.read_text(encoding="utf-8"))


def names(cases: Iterable[int]) -> str:
    return " ".join(f"V{case:02d}" for case in sorted(cases)) or "none"


def test_pending_names_known_cases_and_later_stages_once():
    rows = listed()
    assert not {case for case, _, _ in rows} - set(ALL)
    assert {stage for _, stage, _ in rows} <= set(LATER_STAGES)
    keys = [(case, stage) for case, stage, _ in rows]
    assert len(keys) == len(set(keys)), "a case is listed twice for one stage"
    assert keys == sorted(keys), "keep pending.txt in the order of the ids"


def test_no_test_cites_an_unknown_case():
    unknown = {case: files for case, files in where_tested().items() if case not in ALL}
    assert not unknown


def test_every_case_is_tested_or_pending():
    missing = set(ALL) - set(where_tested()) - {case for case, _, _ in listed()}
    assert not missing, f"neither tested nor in tests/pending.txt: {names(missing)}"


def test_every_case_owed_now_is_tested():
    missing = ids_in_text(OWED_NOW) - set(where_tested())
    assert not missing, f"owed by this stage, but no test cites: {names(missing)}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def test_v07_v08_bias(): ...", {7, 8}),
        ("def test_a():\n    '''V18-V20: stops at an accepted EOS.'''", {18, 19, 20}),
        ("class TestV100:\n    '''See V99.'''", {99}),
        ("def helper_v12():\n    '''V13'''\n# V14", set()),
        ("def test_rev12(): ...", set()),
    ],
)
def test_citations_are_read_from_names_and_docstrings_only(source, expected):
    assert cited(source) == expected


@pytest.mark.parametrize("line", ["V1 | 2 | x", "V51 | later | x", "V51 | 6 |", "V51 6 missing"])
def test_a_malformed_pending_line_is_named(line):
    with pytest.raises(AssertionError, match=r"pending\.txt:1"):
        pending(line)
