"""Calls as Llama 3.1 and later write them: the reply is JSON, perhaps after a token that says so.

<|python_tag|>{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}

Only a known name makes a call: a reply may be JSON of its own.
"""

from __future__ import annotations

from foreword.chat._grammar import Literal, json_bodies, reply_at_start
from foreword.chat._json_call import JsonCall
from foreword.chat._scan import Plain
from foreword.chat.events import Content, Event, Tools

TAG = "<|python_tag|>"
MARKERS = (TAG,)


def fits(template: str) -> bool:
    return TAG in template or '"parameters": dictionary' in template


class Llama3Json:
    """START: a call may begin here. AFTER: a call ended. TEXT: plain, until the tag comes."""

    def __init__(self, tools: Tools) -> None:
        self.finished = 0
        self._tools = tools
        self._plain = Plain((TAG,))
        self._call: JsonCall | None = None
        self._start: str | None = ""  # text held at START, or None
        self._after: str | None = None  # text held at AFTER, or None

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            if self._call is not None:
                text = self._inside(text, events)
            elif self._after is not None:
                text = self._behind(text)
            elif self._start is not None:
                text = self._begin(text, events)
            else:
                shown, tag, text = self._plain.push(text)
                events += [Content(shown)] if shown else []
                if tag is not None:
                    self._start = ""
        return events

    def finish(self) -> list[Event]:
        rest = self._start or self._plain.finish()
        if self._call is not None:
            rest = "" if self._call.begun else self._call.raw
        if self._plain.after_call and not rest.strip():
            rest = ""
        return [Content(rest)] if rest else []

    def _begin(self, text: str, events: list[Event]) -> str:
        assert self._start is not None
        text = self._start + text
        bare = text.lstrip()
        if TAG.startswith(bare) and bare != TAG:  # nothing yet, or part of the tag
            self._start = text
            return ""
        if bare.startswith(TAG):
            self._start = ""
            return bare.removeprefix(TAG)
        self._start = None
        if bare.startswith("{"):
            self._call = JsonCall(self.finished, self._tools)
        return text

    def _inside(self, text: str, events: list[Event]) -> str:
        call = self._call
        assert call is not None
        events += call.push(text)
        if call.failed:
            self._call = None
            return call.raw + call.rest  # plain text: no call begins in the middle of it
        if not call.done:
            return ""
        self.finished += 1
        self._plain.after_call = True
        self._call, self._after = None, ""
        return call.rest

    def _behind(self, text: str) -> str:
        rest = text.lstrip()
        if not rest:
            return ""
        self._after = None
        if rest[0] in ";{":
            self._start = ""
            return rest.removeprefix(";")
        return rest


def make(tools: Tools) -> Llama3Json:
    return Llama3Json(tools)


def grammar(tools: Tools, many: bool, literal: Literal) -> str:
    body, rules = json_bodies(tools, "parameters")
    more = ' ("; " call)*' if many else ""
    return f"calls: call{more}\ncall: {body}\n" + rules


def free(many: bool, literal: Literal) -> str:
    return reply_at_start(r'/(?s:\s*\{\s*"name".*)/')
