"""Answers: read back by OpenAI's own client models, streamed and whole the same message."""

from __future__ import annotations

from typing import Any

import openai.types as client
import openai.types.chat as client_chat
import pytest

import text_vocabularies as vocabularies
from foreword.chat.events import Call, ChatMessage, Content, Reasoning, ToolCall
from foreword.outputs import CompletionOutput, Logprob, RequestOutput
from foreword.serve.convert import Answer
from foreword.serve.logprobs import TokenNames
from foreword.serve.respond import (
    ChatEvents,
    Prompt,
    chat_answer,
    completion_answer,
    finish_reason,
    usage_of,
)
from foreword.serve.responses import Head

HEAD = Head(id="r", created=1, model="m", system_fingerprint="fp")
NAMES = TokenNames(vocabularies.smollm2())
IDS = vocabularies.smollm2().encode("Hé", add_special_tokens=False)
ROWS = [
    {token: Logprob(-0.5, 1, "x"), 9: Logprob(-1.5, 2, "y"), 10: Logprob(-2.0, 3, "z")}
    for token in IDS
]


def output(index: int = 0, **more: Any) -> CompletionOutput:
    return CompletionOutput(
        **{
            "index": index,
            "text": "Hé",
            "token_ids": IDS,
            "logprobs": ROWS,
            "cumulative_logprob": -1.0,
            "finish_reason": "stop",
            "stop_reason": None,
            "seed": 5,
            "metrics": {"tokens_per_second": 1.0},
            "receipt": {"tokens_sha256": "x"},
            "text_offsets": [*range(len(IDS))],
            "content": "Hé",
            **more,
        }
    )


def result(*outputs: CompletionOutput, **more: Any) -> RequestOutput:
    return RequestOutput("0", "A", [32], list(outputs), **more)


CALLED = output(
    content=None, reasoning="hm", tool_calls=[ToolCall("call_1_0", "now", '{"a": 1}')], index=1
)


def test_a_chat_is_read_by_the_client():
    answer = Answer(alternatives=2)
    sent = chat_answer(HEAD, answer, result(output(), CALLED), NAMES).model_dump()
    read = client_chat.ChatCompletion.model_validate(sent)
    first, second = read.choices
    assert (first.message.content, first.finish_reason, first.message.tool_calls) == (
        "Hé", "stop", None,
    )  # fmt: skip
    assert (second.index, second.finish_reason, second.message.content) == (1, "tool_calls", None)
    call = second.message.tool_calls[0]
    assert (call.id, call.type, call.function.name) == ("call_1_0", "function", "now")
    assert call.function.arguments == '{"a": 1}'
    assert sent["choices"][1]["message"]["reasoning_content"] == "hm"
    assert (read.usage.prompt_tokens, read.usage.completion_tokens) == (1, 2 * len(IDS))
    assert sent["foreword"]["receipts"]["1"] == {"tokens_sha256": "x"}
    assert sent["choices"][0]["seed"] == 5
    entry = first.logprobs.content[-1]
    assert [other.logprob for other in entry.top_logprobs] == [-0.5, -1.5]
    assert b"".join(bytes(item.bytes) for item in first.logprobs.content) == "Hé".encode()


def test_what_was_not_asked_for_is_not_sent():
    sent = chat_answer(HEAD, Answer(reasoning=False), result(CALLED), NAMES)
    assert sent.choices[0].logprobs is None
    assert sent.choices[0].message.reasoning_content is None
    assert sent.choices[0].token_ids is None
    assert sent.prompt_token_ids is None
    assert sent.metrics == {"tokens_per_second": 1.0}
    sent = chat_answer(HEAD, Answer(token_ids=True), result(CALLED), NAMES)
    assert (sent.prompt_token_ids, sent.choices[0].token_ids) == ([32], IDS)
    empty = chat_answer(HEAD, Answer(), result(output(content=None)), NAMES)
    assert empty.choices[0].message.content == ""


def test_completions_are_read_by_the_client():
    rows = [None]
    answer = Answer(alternatives=3, echo=True)
    results = [result(output(), output(1), prompt_logprobs=rows) for _ in range(2)]
    sent = completion_answer(HEAD, answer, results, [Prompt("A", [0])] * 2, NAMES).model_dump()
    read = client.Completion.construct(**sent)  # as the client does; the first logprob is null
    assert [choice.index for choice in read.choices] == [0, 1, 2, 3]
    assert read.choices[3].text == "AHé"
    logprobs = read.choices[0].logprobs
    assert logprobs.text_offset == [0, *(1 + place for place in range(len(IDS)))]
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 1 + len(IDS)
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs[0] is None
    assert read.usage.total_tokens == 2 + 4 * len(IDS)
    plain = completion_answer(HEAD, Answer(), results, [Prompt()] * 2, NAMES)
    assert plain.choices[0].logprobs is None
    assert plain.choices[0].text == "Hé"
    ids = completion_answer(
        HEAD, Answer(alternatives=0), results, [Prompt()] * 2, TokenNames(NAMES._tokenizer, True)
    )
    assert ids.choices[0].logprobs is not None
    assert ids.choices[0].logprobs.tokens == [f"token_id:{token}" for token in IDS]


EVENTS = [
    [Reasoning("h"), Reasoning("m")],
    [Content("Look")],
    [],
    [Content(":"), Call(0, "now"), Call(0, None, '{"a"')],
    [Call(0, None, ": 1}"), Call(1, "go", "{}")],
]


def test_a_streamed_chat_joins_to_the_whole_one():
    stream = ChatEvents(HEAD, Answer())
    ids = ["call_0", "call_1"]
    sent = [stream.first(), *(stream.delta(events, ids) for events in EVENTS)]
    assert sent[3] is None
    sent.append(stream.last("stop", None))
    read = [client_chat.ChatCompletionChunk.model_validate(one.model_dump()) for one in sent if one]
    assert read[0].choices[0].delta.role == "assistant"
    assert read[-1].choices[0].finish_reason == "tool_calls"
    message = ChatMessage()
    for events in EVENTS:
        message.add(events)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in read)
    assert text == message.content == "Look:"
    deltas = [call for chunk in read for call in chunk.choices[0].delta.tool_calls or []]
    for index, call in enumerate(message.tool_calls):
        mine = [delta for delta in deltas if delta.index == index]
        assert [delta.id for delta in mine if delta.id] == [ids[index]]
        assert [d.function.name for d in mine if d.function.name] == [call.name]
        assert "".join(delta.function.arguments for delta in mine) == call.arguments
    assert sent[1].choices[0].delta.reasoning_content == message.reasoning == "hm"
    silent = ChatEvents(HEAD, Answer(reasoning=False))
    assert silent.delta(EVENTS[0], ids) is None
    assert silent.last("stop", "x").choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("reason", "calls", "sent"),
    [
        ("stop", True, "tool_calls"),
        ("stop", False, "stop"),
        ("length", True, "length"),
        (None, False, None),
    ],
)
def test_finish_reasons(reason: str | None, calls: bool, sent: str | None):
    assert finish_reason(reason, calls) == sent


def test_usage_counts_every_sample():
    assert usage_of([result(output(), output(1))]).model_dump() == {
        "prompt_tokens": 1,
        "completion_tokens": 2 * len(IDS),
        "total_tokens": 1 + 2 * len(IDS),
    }
