"""What a parser reads out of a reply, piece by piece, and the message the pieces join to.

Whole and streamed replies are read by the same parser: whole is the stream joined, so the two
cannot differ. Knows no style.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """Part of tool call `index`: its name, once and first, then its arguments as JSON text."""

    index: int
    name: str | None = None
    arguments: str = ""


Event = Content | Reasoning | Call


@dataclass(slots=True)
class ToolCall:
    """A call the model asks for. `arguments` is JSON as the model wrote it: check it before use;
    a reply cut by a limit may end inside it."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class ChatMessage:
    """A reply, taken apart. content is None when there is no text beside calls or reasoning."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    def add(self, events: Iterable[Event], call_ids: str = "call_{}") -> None:
        """Join further events; `call_ids.format(index)` is the id of a call."""
        for event in events:
            if isinstance(event, Content):
                self.content = (self.content or "") + event.text
            elif isinstance(event, Reasoning):
                self.reasoning = (self.reasoning or "") + event.text
            elif event.name is not None:
                assert event.index == len(self.tool_calls), (event, self.tool_calls)
                name, arguments = event.name, event.arguments
                self.tool_calls.append(ToolCall(call_ids.format(event.index), name, arguments))
            else:
                self.tool_calls[event.index].arguments += event.arguments


def joined(events: Iterable[Event]) -> list[Event]:
    """The same, with neighbours that go on with each other made one."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, Call):
            if isinstance(last, Call) and last.index == event.index and event.name is None:
                result[-1] = replace(last, arguments=last.arguments + event.arguments)
                continue
        elif type(last) is type(event):
            assert isinstance(last, (Content, Reasoning))
            result[-1] = replace(last, text=last.text + event.text)
            continue
        result.append(event)
    return result


Tools = Mapping[str, Mapping[str, Any]]
"""Function name -> JSON schema of its arguments ({} where the user gave none)."""


class ToolParser(Protocol):
    """Reads tool calls out of one reply. Never gives out part of a tag as text, and loses no text
    but the tags and the blanks around calls."""

    finished: int  # calls that are complete

    def push(self, text: str) -> list[Event]:
        """Events that became certain with this text."""

    def finish(self) -> list[Event]:
        """The reply is over: what was held back."""


class Style(Protocol):
    """A file of chat/styles: one way of writing tool calls. A module with these names."""

    MARKERS: tuple[str, ...]  # texts of the wrapper; may be special tokens, shown to the parser

    def fits(self, template: str) -> bool:
        """Whether a chat template teaches this style."""

    def make(self, tools: Tools) -> ToolParser:
        """A parser for one reply."""

    def grammar(self, tools: Tools, many: bool, literal: Callable[[str], str]) -> str:
        """Lark rules, as llguidance reads them, for `calls`: one or more calls, or exactly one."""

    def free(self, many: bool, literal: Callable[[str], str]) -> str:
        """Rules beside `grammar` for `reply`: text without calls, or with calls of that form."""
