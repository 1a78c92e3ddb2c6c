"""Calls as Qwen3-Coder writes them: tags for the function and for each parameter.

<tool_call>
<function=f>
<parameter=a>
1
</parameter>
</function>
</tool_call>

A value is text; the schema says whether it stands for something else. Arguments are given out as
JSON, one parameter at a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foreword.chat._grammar import Literal, reply_with_tag, tagged_call
from foreword.chat._json_call import dumps, loads
from foreword.chat._scan import Plain
from foreword.chat.events import Call, Content, Event, Tools

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"
MARKERS = (OPEN, CLOSE)

_HEAD = re.compile(r"\s*<function=([^<>\s]+)>")
_MAY_BE_HEAD = re.compile(r"\s*<function=[^<>\s]*")
_VALUE = re.compile(rf"\s*{PARAMETER}([^<>\s]+)>\n?(.*?)\n?{END_PARAMETER}", re.DOTALL)
_END = re.compile(rf"\s*{END_FUNCTION}")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "object": dict,
    "array": list,
}


def fits(template: str) -> bool:
    return FUNCTION in template


class Qwen3Coder:
    """States: text, then the head of a call, its parameters, and what closes it."""

    def __init__(self, tools: Tools) -> None:
        self.finished = 0
        self._tools = tools
        self._plain = Plain((OPEN, FUNCTION))
        self._state = "text"  # text | head | body | behind
        self._held = ""
        self._tag = ""  # what is given back where no call follows
        self._bare = False  # the function's tag stands alone
        self._name = ""
        self._given = 0  # parameters given out of the open call

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            if self._state == "text":
                text = self._text(text, events)
            elif self._state == "head":
                text = self._head(self._held + text, events)
            elif self._state == "body":
                text = self._body(text, events)
            else:
                text = self._behind(self._held + text)
        return events

    def finish(self) -> list[Event]:
        rest = self._plain.finish()
        if self._state == "head":
            rest = self._tag + self._held
        return [Content(rest)] if rest else []

    def _text(self, text: str, events: list[Event]) -> str:
        shown, tag, text = self._plain.push(text)
        events += [Content(shown)] if shown else []
        if tag is not None:
            self._state, self._bare = "head", tag == FUNCTION
            self._tag = self._plain.dropped + ("" if self._bare else tag)
            self._held = FUNCTION if self._bare else ""
            if not text:  # the tag alone may complete nothing
                return ""
        return text

    def _head(self, text: str, events: list[Event]) -> str:
        match = _HEAD.match(text)
        if match:
            self._state, self._held = "body", ""
            self._name, self._given = match[1], 0
            events.append(Call(self.finished, self._name))
            return text[match.end() :]
        if FUNCTION.startswith(text.lstrip()) or _MAY_BE_HEAD.fullmatch(text):
            self._held = text
            return ""
        self._state, self._held = "text", ""
        if self._bare:
            self._tag, text = self._tag + FUNCTION, text.removeprefix(FUNCTION)
        events.append(Content(self._plain.give_back(self._tag)))
        return text

    def _body(self, text: str, events: list[Event]) -> str:
        news = self._held[-len(END_PARAMETER) :] + text
        text = self._held + text
        if match := _END.match(text):
            self._end(events)
            return text[match.end() :]
        match = _VALUE.match(text) if END_PARAMETER in news else None
        if match is None:
            self._held = text
            return ""
        self._held = ""
        value = _typed(match[2], _schema_of(self._tools, self._name, match[1]))
        before = ", " if self._given else "{"
        spelled = f"{before}{dumps(match[1])}: {dumps(value)}"
        events.append(Call(self.finished, None, spelled))
        self._given += 1
        return text[match.end() :]

    def _end(self, events: list[Event]) -> None:
        events.append(Call(self.finished, None, "}" if self._given else "{}"))
        self.finished += 1
        self._plain.after_call = True
        self._state, self._held = "behind", ""

    def _behind(self, text: str) -> str:
        rest = text.lstrip()
        if CLOSE.startswith(rest) and rest != CLOSE:
            self._held = rest
            return ""
        self._state, self._held = "text", ""
        return rest.removeprefix(CLOSE)


def _schema_of(tools: Tools, name: str, parameter: str) -> Mapping[str, Any]:
    properties = tools.get(name, {}).get("properties")
    schema = properties.get(parameter) if isinstance(properties, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def _typed(text: str, schema: Mapping[str, Any]) -> Any:
    """The value a text stands for: JSON if the schema wants something else than a string and it
    reads as that; else the text."""
    kinds = schema.get("type")
    if kinds == "string" or (kinds is None and "enum" in schema):
        return text
    try:
        value = loads(text)
    except (ValueError, RecursionError):
        return text
    wanted = [kinds] if isinstance(kinds, str) else kinds or list(_TYPES)
    fits = [kind for kind in wanted if isinstance(value, _TYPES.get(kind, ()))]
    if isinstance(value, bool):
        fits = [kind for kind in fits if kind == "boolean"]
    return value if fits else text


def make(tools: Tools) -> Qwen3Coder:
    return Qwen3Coder(tools)


def grammar(tools: Tools, many: bool, literal: Literal) -> str:
    names = [f"call_{index}" for index in range(len(tools))]
    more = f' ("\\n" {literal(OPEN)} tail)*' if many else ""
    rules = [
        tagged_call(rule, name, schema)
        for rule, (name, schema) in zip(names, tools.items(), strict=True)
    ]
    return (
        f"calls: {literal(OPEN)} tail{more}\n"
        f'tail: "\\n" ({" | ".join(names)}) "\\n" {literal(CLOSE)}\n' + "".join(rules)
    )


def free(many: bool, literal: Literal) -> str:
    return reply_with_tag(literal(OPEN), many)
