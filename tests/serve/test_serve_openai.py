"""The official client, unchanged: completions, chats, streams, tools, forms, models, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from serving_rig import PATIENCE, Served

import chat_templates as templates
from chat_templates import HELLO, TOOLS
from foreword import LLM, SamplingParams


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="unused", timeout=PATIENCE, max_retries=0
    ) as client:
        yield client


SAMPLED = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)
ASKED = {"temperature": 1.0, "seed": 5, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


def test_completions(client: openai.OpenAI, alone: LLM):
    text = alone.generate("Once upon a time", SAMPLED)[0].outputs[0].text
    whole = client.completions.create(model="tiny", prompt="Once upon a time", **ASKED)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (text, "length")
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (16, 24)
    parts = client.completions.create(model="tiny", prompt="Once upon a time", stream=True, **ASKED)
    assert "".join(part.choices[0].text for part in parts) == text


def test_chats(client: openai.OpenAI, alone: LLM):
    text = alone.chat(HELLO, SAMPLED)[0].outputs[0].content
    whole = client.chat.completions.create(model="tiny", messages=HELLO, **ASKED)
    assert whole.choices[0].message.content == text
    assert whole.choices[0].message.role == "assistant"
    assert whole.system_fingerprint
    parts = [
        *client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            stream=True,
            stream_options={"include_usage": True},
            **ASKED,
        )
    ]
    assert "".join(part.choices[0].delta.content or "" for part in parts[:-1]) == text
    assert parts[-1].usage == whole.usage
    assert {part.id for part in parts} == {parts[0].id}


def test_tool_calls_streamed_and_whole(client: openai.OpenAI, alone: LLM):
    """A required call: its grammar makes even random weights write one."""
    asked = {
        "temperature": 0,
        "seed": 1,
        "max_tokens": 300,
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "extra_body": {"chat_template": templates.HERMES},
    }
    expected = alone.chat(
        HELLO,
        SamplingParams(temperature=0, seed=1, max_tokens=300),
        tools=TOOLS,
        tool_choice=asked["tool_choice"],
        chat_template=templates.HERMES,
    )[0].outputs[0]
    (call,) = expected.tool_calls
    whole = client.chat.completions.create(model="tiny", messages=HELLO, **asked)
    (mine,) = whole.choices[0].message.tool_calls or []
    assert (mine.id, mine.function.name, mine.function.arguments) == (
        call.id, "get_weather", call.arguments,
    )  # fmt: skip
    with client.chat.completions.stream(model="tiny", messages=HELLO, **asked) as events:
        final = events.get_final_completion()
    (streamed,) = final.choices[0].message.tool_calls or []
    assert (streamed.id, streamed.function.arguments) == (call.id, call.arguments)
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    if expected.finish_reason == "stop":
        assert whole.choices[0].finish_reason == "tool_calls"
        json.loads(call.arguments)


def test_a_json_schema_is_kept_to(client: openai.OpenAI):
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    answer = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=400,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert answer.choices[0].finish_reason == "stop"
    assert list(json.loads(answer.choices[0].message.content or "")) == ["ok"]


def test_models(client: openai.OpenAI):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "foreword"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_errors_are_the_clients_own(client: openai.OpenAI):
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="another", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=-1, stream=True)
    assert bad.value.param == "temperature"
