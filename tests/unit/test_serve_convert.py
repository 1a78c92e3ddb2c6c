"""Bodies to jobs: where each field ends up, and which bodies are refused and how."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from foreword.chat.prepare import ChatOptions
from foreword.errors import RequestError
from foreword.params import SamplingParams, StructuredOutput
from foreword.serve.admit import admit_chat, admit_completion
from foreword.serve.convert import (
    LIBRARY_ONLY,
    Answer,
    DraftWish,
    Job,
    Served,
    chat_job,
    completion_job,
)

SERVED = Served({"tiny": None, "poet": "poet-lora"}, "{{ messages }}", frozenset({"none", "ngram"}))
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def completion(served: Served = SERVED, **body: Any) -> Job:
    return completion_job(admit_completion({"prompt": "x", **body}), served)


def chat(served: Served = SERVED, **body: Any) -> Job:
    return chat_job(admit_chat({"messages": HELLO, **body}), served)


# Field of a body, a value other than the default, where it ends up.
PARAMETERS: list[tuple[str, Any]] = [
    ("temperature", 0.5), ("top_p", 0.5), ("n", 2), ("seed", 7), ("stop", ["a", "b"]),
    ("presence_penalty", 0.5), ("frequency_penalty", -0.5), ("best_of", 3), ("top_k", 5),
    ("min_p", 0.1), ("typical_p", 0.9), ("repetition_penalty", 1.1), ("min_tokens", 1),
    ("stop_token_ids", [3]), ("include_stop_str_in_output", True), ("ignore_eos", True),
    ("bad_words", ["x"]), ("allowed_token_ids", [1, 2]), ("prompt_logprobs", 2),
    ("skip_special_tokens", False), ("xtc_probability", 0.5), ("xtc_threshold", 0.2),
    ("mirostat_mode", 2), ("mirostat_tau", 4.0), ("mirostat_eta", 0.2), ("dry_multiplier", 0.5),
    ("dry_base", 2.0), ("dry_allowed_length", 3), ("dry_penalty_last_n", 10),
    ("dry_sequence_breakers", ["."]), ("logprobs_mode", "processed"), ("time_limit", 2.0),
    ("sampler", "arithmetic"), ("acceptance", "typical"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), PARAMETERS)
def test_a_sampling_field_ends_in_the_parameter_of_its_name(name: str, value: Any):
    for job in (completion(**{name: value}), chat(**{name: value})):
        expected = SamplingParams(**{name: value, "max_tokens": job.params.max_tokens})
        assert job.params == expected
        assert getattr(job.params, name) != getattr(SamplingParams(), name)


def test_no_sampling_field_is_left_out_of_the_list_above():
    by_hand = {"max_tokens", "logprobs", "logit_bias", "structured_outputs"} | LIBRARY_ONLY
    by_hand |= {"acceptance_options"}
    assert {name for name, _ in PARAMETERS} == {f.name for f in fields(SamplingParams)} - by_hand


def test_defaults():
    assert completion() == Job(
        model="tiny", adapter=None, params=SamplingParams(max_tokens=16), prompts=("x",)
    )
    plain = chat()
    assert plain.params == SamplingParams(max_tokens=None)
    assert plain.chat == ChatOptions(chat_template_kwargs={})
    assert plain.messages == (HELLO[0],)


@pytest.mark.parametrize(
    ("body", "attribute", "value"),
    [
        ({"model": "poet"}, "adapter", "poet-lora"),
        ({"model": "poet"}, "model", "poet"),
        ({"request_id": "r1"}, "request_id", "r1"),
        ({"priority": -3}, "priority", -3),
        ({"cache_salt": "s"}, "salt", "s"),
        ({"deadline_ms": 250}, "seconds", 0.25),
        ({"speculative": {"enabled": False}}, "draft", DraftWish(None, 0)),
        ({"speculative": {"method": "none"}}, "draft", DraftWish("none", 0)),
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 3}}, "draft",
         DraftWish("ngram", 3)),
        ({"user": "u"}, "labels", {"user": "u"}),
        ({"stream": True}, "answer", Answer(stream=True)),
        ({"stream": True, "stream_options": {"include_usage": True}}, "answer",
         Answer(stream=True, usage=True)),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True,
          "include_obfuscation": False}}, "answer", Answer(stream=True, usage_always=True)),
        ({"return_token_ids": True}, "answer", Answer(token_ids=True)),
        ({"return_tokens_as_token_ids": True}, "answer", Answer(tokens_as_ids=True)),
    ],
)  # fmt: skip
def test_a_field_of_both_endpoints(body: dict[str, Any], attribute: str, value: Any):
    assert getattr(completion(**body), attribute) == value
    assert getattr(chat(**body), attribute) == value


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_prompts(prompt: Any, prompts: Any):
    assert completion(prompt=prompt).prompts == prompts


def test_completion_fields():
    assert not completion(add_special_tokens=False).add_special_tokens
    job = completion(echo=True, logprobs=3, max_tokens=5)
    assert job.answer == Answer(echo=True, alternatives=3)
    assert (job.params.logprobs, job.params.prompt_logprobs, job.params.max_tokens) == (3, 3, 5)
    assert completion(echo=True).params.prompt_logprobs is None
    assert completion(logit_bias={"5": 1, "7": -2.5}).params.logit_bias == {5: 1.0, 7: -2.5}


def test_chat_fields():
    job = chat(logprobs=True, top_logprobs=2, max_completion_tokens=9, include_reasoning=False)
    assert (job.params.logprobs, job.params.max_tokens) == (2, 9)
    assert job.answer == Answer(alternatives=2, reasoning=False)
    assert chat(logprobs=True).params.logprobs == 0
    assert (
        chat(max_tokens=4).params.max_tokens
        == chat(max_completion_tokens=4, max_tokens=4).params.max_tokens
    )
    labels = {"metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "k"}
    assert chat(**labels).labels == labels
    options = chat(
        tools=[TOOL], tool_choice="required", parallel_tool_calls=False, chat_template="{{ x }}",
        chat_template_kwargs={"x": 1}, documents=[{"t": "d"}], add_generation_prompt=False,
        continue_final_message=True, strict=True, date="2024-01-01",
    ).chat  # fmt: skip
    assert options == ChatOptions(
        [TOOL], "required", False, "{{ x }}", {"x": 1, "documents": [{"t": "d"}]}, False, True,
        True, "2024-01-01",
    )  # fmt: skip
    parsers = Served({"m": None}, tool_call_parser="hermes", reasoning_parser="think")
    read = chat(parsers).chat
    assert read is not None
    assert (read.tool_call_parser, read.reasoning_parser) == ("hermes", "think")


def test_reasoning_effort_speaks_the_templates_words():
    def kwargs(template: str, effort: str) -> Any:
        options = chat(Served({"m": None}, template), reasoning_effort=effort).chat
        return None if options is None else options.chat_template_kwargs

    assert kwargs("{{ reasoning_effort }}", "low") == {"reasoning_effort": "low"}
    assert kwargs("{{ enable_thinking }}", "none") == {"enable_thinking": False}
    assert kwargs("{{ enable_thinking }}", "high") == {"enable_thinking": True}
    with pytest.raises(RequestError, match="reasoning_effort: this model's chat template"):
        kwargs("{{ messages }}", "low")


SCHEMA = {"type": "object"}


@pytest.mark.parametrize(
    ("body", "form"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, StructuredOutput(json_object=True)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {
                "name": "n", "schema": SCHEMA, "strict": True, "description": "d"}}},
            StructuredOutput(json=SCHEMA),
        ),
        ({"structured_outputs": {"json": SCHEMA}}, StructuredOutput(json=SCHEMA)),
        ({"structured_outputs": {"regex": "a+"}}, StructuredOutput(regex="a+")),
        ({"structured_outputs": {"choice": ["a", "b"]}}, StructuredOutput(choice=("a", "b"))),
        ({"guided_json": '{"type": "object"}'}, StructuredOutput(json='{"type": "object"}')),
        ({"guided_regex": "a+"}, StructuredOutput(regex="a+")),
        ({"guided_choice": ["a"]}, StructuredOutput(choice=("a",))),
        ({"guided_grammar": "start: \"a\""}, StructuredOutput(grammar='start: "a"')),
    ],
)  # fmt: skip
def test_structured_output_from_every_spelling(body: dict[str, Any], form: Any):
    assert completion(**body).params.structured_outputs == form
    assert chat(**body).params.structured_outputs == form


@pytest.mark.parametrize(
    ("body", "message", "parameter"),
    [
        ({"temprature": 1}, "unknown field 'temprature'; did you mean 'temperature'", "temprature"),
        ({"zzz": 1}, "unknown field 'zzz'; drop it", "zzz"),
        ({"temperature": "hot"}, "temperature is not right: input should be a valid number", None),
        ({"temperature": True}, "temperature is not right", "temperature"),
        ({"temperature": -1}, "temperature must be >= 0", "temperature"),
        ({"temperature": float("nan")}, "temperature must be a finite number", "temperature"),
        ({"n": 0}, "n must be between 1 and", "n"),
        ({"n": 1.5}, "n is not right", "n"),
        ({"seed": -1}, "seed must be between 0", "seed"),
        ({"seed": 2**64}, "seed must be between 0", "seed"),
        ({"stop": [""]}, "stop must hold non-empty strings", "stop"),
        ({"stop": ["a", 1]}, r"stop\[1\] is not right", "stop[1]"),
        ({"top_k": "5"}, "top_k is not right", "top_k"),
        ({"user": "\ud800"}, "unpaired surrogate", "user"),
        ({"model": "gpt-4"}, "model 'gpt-4' is not served here; there is: tiny, poet", "model"),
        ({"stream_options": {"include_usage": True}}, "needs stream: true", "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "not supported",
         "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x is not a known field",
         "stream_options.x"),
        ({"logit_bias": {"a": 1}}, "'a', not a token id", "logit_bias"),
        ({"logit_bias": {"1": "x"}}, r"logit_bias", "logit_bias"),
        ({"speculative": {"method": "magic"}}, "'magic' is not loaded; there is: n", None),
        ({"speculative": {"num_speculative_tokens": -1}}, "speculative.num_speculative_tokens",
         None),
        ({"deadline_ms": 0}, "deadline_ms must be > 0", "deadline_ms"),
        ({"response_format": {"type": "json_schema"}}, "needs json_schema.schema", None),
        ({"response_format": {"type": "xml"}}, "response_format.type is not right", None),
        ({"guided_regex": "a", "guided_json": {}}, "exclude each other", None),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "exactly one of", None),
        ({"structured_outputs": {"structural_tag": "x"}}, "not a known field", None),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(body: dict[str, Any], message: str, parameter: str | None):
    for make in (completion, chat):
        with pytest.raises(RequestError, match=message) as caught:
            make(**body)
        assert caught.value.parameter
        if parameter is not None:
            assert caught.value.parameter == parameter


@pytest.mark.parametrize("body", [[], "x", None, 3])
def test_a_body_is_an_object(body: Any):
    for admit in (admit_completion, admit_chat):
        with pytest.raises(RequestError, match="the body must be a JSON object"):
            admit(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt is not right"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"echo": "yes"}, "echo is not right"),
    ],
)
def test_a_wrong_completion_is_named(body: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        completion(**body)
    with pytest.raises(RequestError, match="prompt is required"):
        admit_completion({})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": "x"}, "messages is not right"),
        ({"messages": [{"content": "x"}]}, r"messages\[0\].role must be one of system, developer"),
        ({"messages": [{"role": "function", "content": "x", "name": "f"}]}, 'role "tool"'),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": []}]}, "unknown field"),
        ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "1"}}]}, "audio"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "'function'"),
        ({"messages": [{"role": "user", "content": [
            {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit"}}]}]},
         r"messages\[0\].content\[0\].prompt_cache_breakpoint is not supported"),
        ({"top_logprobs": 3}, "top_logprobs needs logprobs"),
        ({"logprobs": 3}, "logprobs is not right"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({"add_special_tokens": True}, "the chat template writes them"),
    ],
)  # fmt: skip
def test_a_wrong_chat_is_named(body: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message) as caught:
        chat(**body)
    assert caught.value.parameter


def test_messages_reach_the_template_fresh():
    messages = [
        {"role": "developer", "content": "d", "name": "n"},
        {"role": "assistant", "content": None, "refusal": None, "audio": None, "name": None,
         "reasoning_content": "r", "tool_calls": [
             {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "c", "tool_call_id": "1"},
    ]  # fmt: skip
    read = chat(messages=messages).messages
    assert read[0] == {"role": "system", "content": "d", "name": "n"}
    assert set(read[1]) == {"role", "content", "reasoning_content", "tool_calls"}
    assert read[2] == messages[2]
