"""Calls as Llama 3.2 and 4 write them: a list of Python calls with keywords and literals.

[f(a=1, b="x"), g()]

Arguments are given out as JSON, one keyword at a time. Only known names make calls.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from foreword.chat._grammar import Literal, python_call, reply_at_start
from foreword.chat._scan import Brackets, Plain
from foreword.chat.events import Call, Content, Event, Tools

START, END = "<|python_start|>", "<|python_end|>"
MARKERS = (START, END)

_OPENING = re.compile(r"\s*([\w.\-]+)\s*\(")
_MAY_OPEN = re.compile(r"\s*[\w.\-]*\s*")
_KEYWORD = re.compile(r"\s*(\w+)\s*=\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\.", re.DOTALL)
_KNOWN_ESCAPES = set("\\'\"abfnrtvxuUN01234567\n")
_JSON_NAMES = {"true": True, "false": False, "null": None}


def fits(template: str) -> bool:
    return START in template or "[func_name1(" in template


class Pythonic:
    """Works on a list opened by "[" at the start of the reply or after the start token."""

    def __init__(self, tools: Tools) -> None:
        self.finished = 0
        self._tools = tools
        self._plain = Plain((START, END))
        self._state = "start"  # start | call | arguments | behind | text
        self._held = ""
        self._brackets = Brackets()
        self._arguments = 0  # keywords given out of the open call
        self._steps = {
            "start": self._start,
            "call": self._call,
            "arguments": self._keywords,
            "behind": self._behind,
            "text": self._text,
        }

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            text = self._steps[self._state](text, events)
        return events

    def finish(self) -> list[Event]:
        rest = self._held + self._plain.finish()
        if self._state in ("arguments", "behind") or (self.finished and not rest.strip(", \n")):
            return []  # cut inside a call: it keeps the keywords that were complete
        return [Content(rest)] if rest else []

    def _to(self, state: str, held: str = "") -> None:
        self._state, self._held = state, held

    def _start(self, text: str, events: list[Event]) -> str:
        text = self._held + text
        bare = text.lstrip()
        if START.startswith(bare) and bare != START:
            self._to("start", text)
            return ""
        if bare.startswith(START):
            self._to("start")
            return bare.removeprefix(START)
        if bare.startswith("["):
            self._to("call", "[")
            return bare[1:]
        self._to("text")
        return text

    def _call(self, text: str, events: list[Event]) -> str:
        """A name and its bracket. `_held` begins with the "[" of a list without a call so far."""
        text = self._held + text
        body = text.removeprefix("[")
        match = _OPENING.match(body)
        if match and match[1] in self._tools:
            self._to("arguments")
            self._brackets, self._arguments = Brackets("'\""), 0
            events.append(Call(self.finished, match[1]))
            return body[match.end() :]
        if match or not _MAY_OPEN.fullmatch(body):
            self._to("text")
            return text
        self._to("call", text)
        return ""

    def _text(self, text: str, events: list[Event]) -> str:
        shown, tag, text = self._plain.push(text)
        events += [Content(shown)] if shown else []
        if tag == START:
            self._to("start")
        return text

    def _keywords(self, text: str, events: list[Event]) -> str:
        for place, character in enumerate(text):
            inside = self._brackets.in_string
            closing = not inside and self._brackets.depth == 0 and character in ",)"
            if not closing:
                self._brackets.feed(character)
                continue
            keyword = self._held + text[:place]
            shown = self._spell(keyword, last=character == ")")
            if shown:
                events.append(Call(self.finished, None, shown))
            self._held = ""
            if character == ")":
                self.finished += 1
                self._plain.after_call = True
                self._to("behind")
            return text[place + 1 :]
        self._held += text
        return ""

    def _behind(self, text: str, events: list[Event]) -> str:
        """After a call: a comma and the next one, or the end of the list."""
        text = text.lstrip()
        if text.startswith(","):
            self._to("call")
            return text[1:]
        if text:
            self._to("text")
        return text.removeprefix("]")

    def _spell(self, keyword: str, last: bool) -> str:
        """JSON of one keyword with the bracket or comma before it; as written if it is none."""
        shown = ""
        if keyword.strip():
            shown = (", " if self._arguments else "{") + _json(keyword)
            self._arguments += 1
        if last:
            shown += "}" if self._arguments else "{}"
        return shown


def _json(keyword: str) -> str:
    match = _KEYWORD.fullmatch(keyword)
    if match is None:
        return keyword.strip()
    try:
        value = json.dumps(_literal(match[2]), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        value = match[2].strip()  # as the model wrote it
    return f"{json.dumps(match[1], ensure_ascii=False)}: {value}"


def _spelled(escape: re.Match[str]) -> str:
    """Python keeps the backslash of an escape that it does not know, and warns: spelled out."""
    return escape[0] if escape[0][1] in _KNOWN_ESCAPES else "\\" + escape[0]


class _Names(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def _literal(text: str) -> Any:
    text = _ESCAPE.sub(_spelled, text.strip())
    return ast.literal_eval(_Names().visit(ast.parse(text, mode="eval")))


def make(tools: Tools) -> Pythonic:
    return Pythonic(tools)


def grammar(tools: Tools, many: bool, literal: Literal) -> str:
    names = [f"call_{index}" for index in range(len(tools))]
    more = ' (", " call)*' if many else ""
    rules = [
        python_call(rule, name, schema)
        for rule, (name, schema) in zip(names, tools.items(), strict=True)
    ]
    leads = " | ".join(f"{name}_leads" for name in names)
    listed = f'calls: ({leads}){more} "]"\n' + (f"call: {' | '.join(names)}\n" if many else "")
    return listed + "".join(rules)


def free(many: bool, literal: Literal) -> str:
    return reply_at_start(r"/(?s:\s*\[[A-Za-z0-9_.-]+\(.*)/")
