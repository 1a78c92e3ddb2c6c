"""What a structured output asks for, checked and written down for llguidance.

A form that is too large, too deep or not well formed is refused here or by `forms.py`, before
anything runs; the error names the field. Sizes are counted in bytes and levels, never in time.
JSON may be written with no blank, one blank, or a line break and its indentation wherever JSON
allows blanks, so that no model can go on with blanks for ever.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from foreword.errors import RequestError
from foreword.params import StructuredOutput
from foreword.text.checks import check_text

MAX_BYTES = 128 * 1024  # of a form's text, UTF-8
MAX_DEPTH = 60  # levels of brackets in a schema
WHITESPACE = r" |\n {0,64}"  # where JSON allows blanks: at most one of these

_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_SPECIAL = re.compile(r"[\\.+*?()|\[\]{}^$#&~/-]|[\x00-\x1f]")
_OPTIONS: Any = {"whitespace_pattern": WHITESPACE}


def field_of(asked: StructuredOutput) -> str:
    """The field that is set."""
    names = ("json", "regex", "choice", "grammar")
    given = [name for name in names if getattr(asked, name) is not None]
    return given[0] if given else "json_object"


def written(asked: StructuredOutput) -> str:
    """The form as an llguidance grammar. Raises RequestError naming the field."""
    name = field_of(asked)
    text = {"json_object": '{"type": "object"}', "choice": "\n".join(asked.choice or ())}.get(name)
    if text is None:
        text = getattr(asked, name)
    check_text(text, parameter(name))
    if len(text.encode("utf-8")) > MAX_BYTES:
        raise refused(name, f"has {len(text.encode('utf-8'))} bytes, the limit is {MAX_BYTES}")
    return _WRITERS[name](asked, text)


def parameter(name: str) -> str:
    return f"structured_outputs.{name}"


def refused(name: str, reason: str) -> RequestError:
    return RequestError(f"structured_outputs: {name} {reason}", parameter(name))


def without_blanks(asked: StructuredOutput) -> str | None:
    """The same JSON form with no blanks between its parts; None for a form that is not JSON."""
    if asked.json is None and not asked.json_object:
        return None
    schema = str(asked.json or '{"type": "object"}')
    return LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False})


def _schema(asked: StructuredOutput, text: str) -> str:
    _check_depth(text)
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise refused("json", f"is not valid JSON: {error}") from None
    if not isinstance(schema, (dict, bool)):
        raise refused("json", f"must be a JSON schema (an object), got {text[:40]!r}")
    return LLMatcher.grammar_from_json_schema(text, defaults=_OPTIONS)


def _regex(asked: StructuredOutput, text: str) -> str:
    return LLMatcher.grammar_from_regex(text)


def _choice(asked: StructuredOutput, text: str) -> str:
    choices = (_SPECIAL.sub(_escaped, choice) for choice in asked.choice or ())
    return LLMatcher.grammar_from_regex("|".join(choices))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return f"\\x{ord(character):02x}" if character < " " else "\\" + character


def _grammar(asked: StructuredOutput, text: str) -> str:
    """Lark's form, or GBNF (`root ::= ...`), which is rewritten."""
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    except Exception as error:  # the rewriter raises what it likes
        raise refused("grammar", f"cannot be read: {short(str(error))}") from None


def _check_depth(text: str) -> None:
    depth = 0
    for character in _STRING.sub("", text):
        depth += _BRACKETS.get(character, 0)
        if depth > MAX_DEPTH:
            raise refused("json", f"is nested deeper than {MAX_DEPTH} levels; make it flatter")


_WRITERS: dict[str, Callable[[StructuredOutput, str], str]] = {
    "json": _schema,
    "json_object": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
}


def short(message: str) -> str:
    """An error of llguidance in one line: what its regex parser complains about, without the form
    that is quoted around it."""
    found = re.search(r"error: ([^\n]+)", message)
    line = " ".join((found[1] if found else message.split("<", 1)[0]).split())
    return line if len(line) <= 200 else line[:197] + "..."
