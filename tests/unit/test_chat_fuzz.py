"""Tool-call parsers on texts made of broken pieces of every style: nothing raised, nothing lost,
and the same message however the text is cut."""

from __future__ import annotations

import random
import re

import pytest

from foreword.chat.events import Call, ChatMessage, Content
from foreword.chat.names import load_style, style_names
from foreword.chat.reasoning import ThinkParser

TOOLS = {"now": {"type": "object", "properties": {"a": {"type": "string"}}}, "get": {}}
PIECES = [
    "<tool_call>", "</tool_call>", "<tool_", "call>", "<function=now>", "<function=", "</function>",
    "<parameter=a>", "</parameter>", "</", "<", ">", '{"name": "now", "arguments": {', '"a": 1',
    '{"name": "get", "parameters": {}}', "}", "}}", "{", '"', "\\", "[", "]", "[now(", "a='x'",
    "now(", ", ", ")", "(", ";", "<|python_tag|>", "<|python_start|>", "<|python_end|>", "\n", "  ",
    '<tool_call>\n{"name": "now", "arguments": {', "<tool_call>\n<function=now>", "[now(",
    "text", "é", '{"name"', '"now"', ": ", "null", '{"arguments": {}, "name": "get"}',
]  # fmt: skip


def soup(generator: random.Random) -> str:
    return "".join(generator.choices(PIECES, k=generator.randrange(1, 14)))


def bare(text: str) -> str:
    """Without blanks and without the tokens that only announce a call."""
    return "".join(re.sub(r"<\|python_\w+\|>", "", text).split())


def read(style: str, pieces: list[str]) -> ChatMessage:
    parser = load_style(style).make(TOOLS)
    message = ChatMessage()
    begun = 0
    for events in [*map(parser.push, pieces), parser.finish()]:
        for event in events:
            if isinstance(event, Call) and event.name is not None:
                assert event.index == begun
                begun += 1
            assert not (isinstance(event, Content) and not event.text)
        message.add(events)
    assert parser.finished <= begun
    return message


@pytest.mark.parametrize("count", [400, pytest.param(4_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("style", style_names())
def test_any_text_is_read_the_same_however_it_is_cut(style: str, count: int):
    generator = random.Random(f"{style} {count}")
    called = 0
    for _ in range(count):
        text = soup(generator)
        whole = read(style, [text])
        assert read(style, list(text)) == whole, text
        at = generator.randrange(len(text) + 1)
        assert read(style, [text[:at], text[at:]]) == whole, text
        called += bool(whole.tool_calls)
        if not whole.tool_calls:
            assert bare(whole.content or "") == bare(text), text
    assert called > count // 60


def test_thoughts_are_cut_the_same_way_however_they_come():
    generator = random.Random(1)
    pieces = ["<think>", "</think>", "<th", "ink>", "</th", " ", "\n", "a", "é", "<", "b c"]
    for _ in range(500):
        text = "".join(generator.choices(pieces, k=generator.randrange(1, 8)))
        for opened in (False, True):
            answers = set()
            for cut in (len(text), 1, 2, 3):
                parser = ThinkParser(opened)
                parts = [parser.push(text[i : i + cut]) for i in range(0, len(text), cut)]
                parts.append(parser.finish())
                answers.add(("".join(a for a, _ in parts), "".join(b for _, b in parts)))
            assert len(answers) == 1, text
