"""Replies read from tokens: reasoning, calls, special markers, the end after one call."""

from __future__ import annotations

import random
from typing import Any

import pytest

import text_vocabularies as vocabularies
from foreword.chat.events import Call, Content, Reasoning, joined
from foreword.chat.names import load_style
from foreword.chat.reasoning import ThinkParser
from foreword.chat.reply import ReplyForm, ReplyStream
from foreword.text.gguf_vocabulary import load_gguf

CALL = '<tool_call>\n{"name": "now", "arguments": {"a": "ü"}}\n</tool_call>'


def think(text: str, opened: bool, pieces: int = 1) -> tuple[str, str]:
    parser = ThinkParser(opened)
    parts = [parser.push(text[i : i + pieces]) for i in range(0, len(text), pieces)]
    parts.append(parser.finish())
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "answer"),
    [
        ("<think>\nHm.\nOk.\n</think>\n\nYes.\n", False, "Hm.\nOk.", "Yes.\n"),
        ("Hm.</think>Yes", True, "Hm.", "Yes"),
        ("\n</think>\n\nYes", True, "", "Yes"),
        ("<think>unfinished </thin", False, "unfinished </thin", ""),
        ("still thinking  ", True, "still thinking", ""),
        (" no <think> here", False, "", " no <think> here"),
        ("<thing>", False, "", "<thing>"),
        ("", False, "", ""),
        ("  <think>a</think>", False, "a", ""),
        ("<think>a </thinking> b</think> c", False, "a </thinking> b", "c"),
    ],
)
def test_reasoning_is_taken_apart(text: str, opened: bool, reasoning: str, answer: str):
    for pieces in (1, 2, 3, 7, 100):
        assert think(text, opened, pieces) == (reasoning, answer)


def stream(text: str, form: ReplyForm, tokenizer: Any = None) -> tuple[ReplyStream, list[Any]]:
    tokenizer = tokenizer or vocabularies.smollm2()
    reply = ReplyStream(tokenizer, [1, 2], (), form=form, seed=3)
    events = []
    for token in tokenizer.encode(text, add_special_tokens=False):
        ended = reply.push(token)
        events += reply.take_events()
        if ended:
            break
    reply.finish()
    return reply, events + reply.take_events()


def test_thought_text_and_calls_in_one_reply():
    form = ReplyForm(load_style("hermes"), {"now": {}}, thinks=True)
    text = f"<think>\nIs it <tool_call>?\n</think>\n\nLook:\n{CALL}\n{CALL}"
    reply, events = stream(text, form)
    assert reply.text == text
    message = reply.message
    assert (message.reasoning, message.content) == ("Is it <tool_call>?", "Look:")
    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("now", '{"a": "ü"}')
    ] * 2
    ids = [call.id for call in message.tool_calls]
    assert len(set(ids)) == 2
    assert all(identifier.startswith("call_") for identifier in ids)
    assert [reply.call_ids.format(0), reply.call_ids.format(1)] == ids
    assert joined(events) == [
        Reasoning("Is it <tool_call>?"),
        Content("Look:"),
        Call(0, "now", '{"a": "ü"}'),
        Call(1, "now", '{"a": "ü"}'),
    ]
    other = ReplyStream(vocabularies.smollm2(), [1, 2, 3], (), form=form, seed=3)
    assert other.call_ids != reply.call_ids


def test_one_call_ends_the_reply_where_only_one_is_wanted():
    form = ReplyForm(load_style("hermes"), {"now": {}}, many=False)
    reply, _ = stream(f"{CALL}\n{CALL}", form)
    assert reply.enough
    assert len(reply.message.tool_calls) == 1
    assert not reply.text.endswith("</tool_call>")
    many, _ = stream(f"{CALL}\n{CALL}", ReplyForm(load_style("hermes"), {"now": {}}))
    assert not many.enough
    assert len(many.message.tool_calls) == 2


def test_markers_that_are_special_tokens_reach_the_parser():
    """The template's control tokens stay hidden; only the style's own are shown."""
    tokens = vocabularies.byte_metadata()["tokenizer.ggml.tokens"]
    kinds = vocabularies.byte_metadata()["tokenizer.ggml.token_type"]
    tokenizer = load_gguf(
        vocabularies.byte_metadata(
            tokens=[*tokens, "<|python_tag|>", "<|eom_id|>"], token_type=[*kinds, 3, 3]
        )
    )
    form = ReplyForm(load_style("llama3_json"), {"now": {}})
    text = '<|python_tag|>{"name": "now", "parameters": {}}<|eom_id|>'
    reply, _ = stream(text, form, tokenizer)
    assert [call.name for call in reply.message.tool_calls] == ["now"]
    assert reply.message.content is None
    assert reply.text == '<|python_tag|>{"name": "now", "parameters": {}}'
    plain, _ = stream("<|python_tag|>Hi", ReplyForm(), tokenizer)
    assert plain.message.content == plain.text == "Hi"


def test_events_join_to_the_message_however_tokens_fall():
    form = ReplyForm(load_style("hermes"), {"now": {}}, thinks=True, opened=True)
    text = f"so </think> A\n{CALL} tail"
    whole, events = stream(text, form)
    assert joined(events)[0] == Reasoning("so")
    tokenizer = vocabularies.smollm2()
    generator = random.Random(5)
    for _ in range(30):
        cut = generator.randrange(1, len(text))
        reply = ReplyStream(tokenizer, [], (), form=form)
        for part in (text[:cut], text[cut:]):
            for token in tokenizer.encode(part, add_special_tokens=False):
                reply.push(token)
        reply.finish()
        assert reply.message.content == whole.message.content == "A\ntail"
        assert reply.message.reasoning == "so"
