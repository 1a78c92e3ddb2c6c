"""Calls as Hermes, Qwen2.5 and Qwen3 write them: JSON between tags, one call a tag.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
"""

from __future__ import annotations

from foreword.chat._grammar import Literal, json_bodies, reply_with_tag
from foreword.chat._json_call import JsonCall
from foreword.chat._scan import Plain
from foreword.chat.events import Content, Event, Tools

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKERS = (OPEN, CLOSE)


def fits(template: str) -> bool:
    return OPEN in template and "<function=" not in template


class Hermes:
    """Any name is a call: the tag says so."""

    def __init__(self) -> None:
        self.finished = 0
        self._plain = Plain((OPEN,))
        self._call: JsonCall | None = None
        self._tag = ""  # what is given back in front of a call that fails
        self._after: str | None = None  # text after a call, while its closing tag is awaited

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            if self._call is not None:
                text = self._inside(text, events)
            elif self._after is not None:
                text = self._behind(text)
            else:
                shown, tag, text = self._plain.push(text)
                events += [Content(shown)] if shown else []
                if tag is not None:
                    self._open(self._plain.dropped + tag)
        return events

    def finish(self) -> list[Event]:
        rest = self._plain.finish()
        if self._call is not None and not self._call.begun:
            rest = self._tag + self._call.raw
        return [Content(rest)] if rest else []

    def _open(self, tag: str) -> None:
        self._call = JsonCall(self.finished, None)
        self._tag, self._after = tag, None

    def _inside(self, text: str, events: list[Event]) -> str:
        call = self._call
        assert call is not None
        events += call.push(text)
        if call.failed:
            self._call = None
            if self._tag:
                events.append(Content(self._plain.give_back(self._tag)))
            return call.raw + call.rest
        if not call.done:
            return ""
        self.finished += 1
        self._plain.after_call = True
        self._call, self._after = None, ""
        return call.rest

    def _behind(self, text: str) -> str:
        """Blanks, then the closing tag, or a further call in the same tag, or plain text."""
        assert self._after is not None
        rest = (self._after + text).lstrip()
        if CLOSE.startswith(rest) and rest != CLOSE:
            self._after = rest
            return ""
        self._after = None
        if rest.startswith("{"):
            self._open("")
        return rest.removeprefix(CLOSE)


def make(tools: Tools) -> Hermes:
    return Hermes()


def grammar(tools: Tools, many: bool, literal: Literal) -> str:
    body, rules = json_bodies(tools, "arguments")
    more = f' ("\\n" {literal(OPEN)} tail)*' if many else ""
    return f'calls: {literal(OPEN)} tail{more}\ntail: "\\n" {body} "\\n" {literal(CLOSE)}\n' + rules


def free(many: bool, literal: Literal) -> str:
    return reply_with_tag(literal(OPEN), many)
