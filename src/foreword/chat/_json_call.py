"""One tool call as a JSON object, `{"name": ..., "arguments": {...}}`, read while it arrives.

In the usual order of keys, the arguments are given out character by character; in any other, when
the object is complete. What turns out to be no call is given back as it came.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any

from foreword.chat._scan import Brackets
from foreword.chat.events import Call, Event

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\s*\{{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*({_STRING})\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*\{',
    re.DOTALL,
)
_FIRST_KEY = re.compile(rf'\s*\{{\s*(?:({_STRING})|[^"\s])', re.DOTALL)
_NAME = re.compile(rf'\s*\{{\s*"name"\s*:\s*(?:({_STRING})|[^"\s])', re.DOTALL)
_KEYS = {'"name"', '"arguments"', '"parameters"', '"type"', '"function"', '"id"'}


class JsonCall:
    """`known`: the names that make a call; None: any. Push until `done` or `failed`.

    rest: text after a call that is done or failed. raw: the text of one not begun or failed.
    """

    def __init__(self, index: int, known: Container[str] | None) -> None:
        self._index = index
        self._known = known
        self._brackets = Brackets()
        self._opened = False
        self._decided = False  # the first key and the name are those of a call
        self._within = False  # inside the arguments, which are being given out
        self.begun = False
        self.done = False
        self.failed = False
        self.raw = ""
        self.rest = ""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        begin = 0  # of the arguments inside `text`
        for place, character in enumerate(text):
            self._brackets.feed(character)
            if self.begun:
                end = self._end_of_arguments(place)
                if end is not None:
                    events.append(Call(self._index, None, text[begin:end]))
            else:
                self.raw += character
                events += self._head(character)
                begin = place
            if self.done or self.failed:
                self.rest = text[place + 1 :]
                return events
        if self._within and text[begin:]:
            events.append(Call(self._index, None, text[begin:]))
        return events

    def _end_of_arguments(self, place: int) -> int | None:
        """Note where the arguments and the call end; one past the arguments when they end here."""
        depth = self._brackets.depth
        if self._brackets.in_string:
            return None
        self.done = depth <= 0
        if self._within and depth <= 1:
            self._within = False
            return place + 1
        return None

    def _head(self, character: str) -> list[Event]:
        depth, in_string = self._brackets.depth, self._brackets.in_string
        if not self._opened:
            self.failed = not character.isspace() and character != "{"
            self._opened = character == "{"
        elif depth == 2 and character == "{" and (match := _HEAD.fullmatch(self.raw)):
            name = _loads(match[1])
            if isinstance(name, str) and self._knows(name):
                self.begun = self._within = True
                return [Call(self._index, name)]
            self.failed = True
        elif depth == 0 and not in_string:
            return self._whole()
        elif not self._decided and (character == '"' or not in_string):
            self._decide()
        return []

    def _decide(self) -> None:
        """Fail as soon as the object cannot be a call."""
        key = _FIRST_KEY.match(self.raw)
        if key is None:
            return
        name = _NAME.match(self.raw)
        if key[1] not in _KEYS or (name and (name[1] is None or not self._knows(_loads(name[1])))):
            self.failed = True
        self._decided = name is not None or key[1] != '"name"'

    def _whole(self) -> list[Event]:
        """The object is complete before its arguments could be given out."""
        value = _loads(self.raw)
        if isinstance(value, dict) and isinstance(value.get("function"), dict):
            value = value["function"]
        name = value.get("name") if isinstance(value, dict) else None
        arguments = _arguments(value) if isinstance(name, str) and self._knows(name) else None
        if arguments is None:
            self.failed = True
            return []
        self.done = self.begun = True
        return [Call(self._index, name), Call(self._index, None, arguments)]

    def _knows(self, name: Any) -> bool:
        spelled = isinstance(name, str) and not any("\ud800" <= one <= "\udfff" for one in name)
        return spelled and (self._known is None or name in self._known)


def _arguments(call: dict[str, Any]) -> str | None:
    """The arguments as JSON text; None when they are no object."""
    value = call.get("arguments", call.get("parameters"))
    if value is None:
        return "{}"
    if isinstance(value, str):  # encoded twice
        return value if isinstance(_loads(value), dict) else None
    return dumps(value) if isinstance(value, dict) else None


def dumps(value: Any) -> str:
    """JSON text that UTF-8 can hold: an unpaired surrogate stays escaped."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text


def loads(text: str) -> Any:
    """What strict JSON says (control characters in strings aside). ValueError or RecursionError
    for anything else, NaN and Infinity among it."""
    return json.loads(text, strict=False, parse_constant=_refuse)


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _loads(text: str) -> Any:
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return None
