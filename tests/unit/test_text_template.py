"""Chat templates: messages of every shape, one BOS, open last messages, the date."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

import text_vocabularies as vocabularies
from foreword.errors import RequestError
from foreword.text.gguf_vocabulary import load_gguf
from foreword.text.template import encode_chat, render, uses_date
from text_vocabularies import byte_metadata

HELLO = [{"role": "user", "content": "Hello"}]
# The shape of Qwen2.5's tool history: arguments pass through tojson.
TOOLS = (
    "{% for message in messages %}{{ message.role }}:{{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    "{% set call = call.function if call.function is defined else call %}"
    '{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}'
    "{% endfor %}|{% endfor %}"
)


def test_v75_v87_smollm2_hello_is_31_ids():
    ids = encode_chat(vocabularies.smollm2(), HELLO)
    assert len(ids) == 31
    assert ids[:3] == [1, 9690, 198]
    assert ids[-4:] == [1, 520, 9531, 198]
    assert ids.count(1) == 3


@pytest.mark.parametrize("add_bos", [True, False])
def test_v75_a_template_that_writes_bos_gives_one_bos(add_bos: bool):
    """V75: plain prompts follow the tokenizer's flag; chats hold what the template wrote."""
    tokenizer = load_gguf(byte_metadata(add_bos_token=add_bos))
    assert tokenizer.encode("c") == ([259, 99] if add_bos else [99])
    ids = encode_chat(tokenizer, HELLO)
    assert ids.count(259) == 1
    assert ids[0] == 259


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "non-empty list"),
        ("Hello", "non-empty list"),
        (HELLO[0], "non-empty list"),
        (["Hello"], r"messages\[0\] must be a mapping"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([*HELLO, {"role": "user", "content": None}], r"messages\[1\]\.content is null"),
        ([*HELLO, {"role": "user"}], r"messages\[1\]\.content is null"),
        ([{"role": "assistant", "content": None}], "is null"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "is null"),
        ([{"role": "user", "content": 3}], "content is int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\].*'image_url'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\]\.text"),
        ([{"role": "user", "content": ["x"]}], "text parts only"),
    ],
)
def test_v77_malformed_content_is_a_request_error(messages: Any, message: str):
    with pytest.raises(RequestError, match=message):
        encode_chat(vocabularies.smollm2(), messages)


def test_v77_text_parts_are_joined():
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    assert encode_chat(vocabularies.smollm2(), parts) == encode_chat(vocabularies.smollm2(), HELLO)
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": two}]) == "a\nb"


def test_v77_null_content_beside_tool_calls():
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert render(TOOLS, [message]) == 'assistant:{"name": "f", "arguments": {}}|'
    encode_chat(vocabularies.smollm2(), [message])  # its template adds strings


@pytest.mark.parametrize(
    ("arguments", "rendered"),
    [
        ('{"city":"Oslo"}', '{"city": "Oslo"}'),
        ({"city": "Oslo"}, '{"city": "Oslo"}'),
        ('{"stadt":"Köln","日":[1,null]}', '{"stadt": "Köln", "日": [1, null]}'),
        ("", "{}"),
        ("{}", "{}"),
        ({}, "{}"),
    ],
)
@pytest.mark.parametrize("nested", [True, False])
def test_v78_tool_call_arguments_are_mappings(arguments: Any, rendered: str, nested: bool):
    """V78: no backslash, no \\uXXXX, whichever way the history spells them."""
    call: dict[str, Any] = {"name": "f", "arguments": arguments}
    if nested:
        call = {"id": "1", "type": "function", "function": call}
    text = render(TOOLS, [{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert text == f'assistant:{{"name": "f", "arguments": {rendered}}}|'
    assert "\\" not in text


@pytest.mark.parametrize("arguments", ["[1]", "null", '{"a":', "x", [1], 3, "[" * 100_000])
def test_v78_other_arguments_are_refused(arguments: Any):
    call = {"function": {"name": "f", "arguments": arguments}}
    with pytest.raises(RequestError, match=r"tool_calls\[0\].*arguments must be a JSON object"):
        render(TOOLS, [{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize("tools", ["x", {"a": 1}, [1]])
def test_malformed_tools_are_a_request_error(tools: Any):
    with pytest.raises(RequestError, match="tools must be a list"):
        encode_chat(vocabularies.smollm2(), HELLO, tools=tools)


def test_messages_of_the_caller_are_not_changed():
    call = {"function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    render(TOOLS, [message], continue_final_message=True)
    assert message == {"role": "assistant", "content": None, "tool_calls": [call]}
    assert call["function"]["arguments"] == "{}"


@pytest.mark.parametrize("trims", [False, True])
@pytest.mark.parametrize("prefix", ["1, 2, ", "Sure:\n", "", "  ", " x", "1, 2"])
def test_v80_continue_final_message_keeps_the_trailing_blank(prefix: str, trims: bool):
    """V80: no end marker after the prefix, blanks kept, also by a template that trims."""
    content = "message.content | trim" if trims else "message.content"
    template = "{% for message in messages %}<{{ message.role }}>{{ CONTENT }}</end>{% endfor %}"
    messages = [*HELLO, {"role": "assistant", "content": prefix}]
    text = render(template.replace("CONTENT", content), messages, continue_final_message=True)
    kept = prefix.lstrip() if trims and prefix.strip() else prefix
    assert text == f"<user>Hello</end><assistant>{kept}"


def test_v80_smollm2_ids():
    messages = [*HELLO, {"role": "assistant", "content": "1, 2, "}]
    ids = encode_chat(vocabularies.smollm2(), messages, continue_final_message=True)
    assert ids[-6:] == [33, 28, 216, 34, 28, 216]
    assert ids.count(2) == 2


def test_v80_an_echo_of_the_prefix_elsewhere_does_not_cut_the_prompt():
    template = "{% for message in messages %}{{ message.content }}|{% endfor %}"
    messages = [{"role": "user", "content": "Sure"}, {"role": "assistant", "content": "Sure"}]
    assert render(template, messages, continue_final_message=True) == "Sure|Sure"


def test_v80_both_flags_are_a_request_error():
    with pytest.raises(RequestError, match="exclude each other"):
        encode_chat(
            vocabularies.smollm2(), HELLO, add_generation_prompt=True, continue_final_message=True
        )


def test_v80_a_template_without_the_last_message_cannot_be_continued():
    with pytest.raises(RequestError, match="leaves out the last message"):
        render("{{ messages[0].role }}", HELLO, continue_final_message=True)


def test_v87_absent_template_says_so():
    tokenizer = load_gguf(byte_metadata(**{"tokenizer.chat_template": None}))
    with pytest.raises(RequestError, match="no chat template"):
        encode_chat(tokenizer, HELLO)
    assert encode_chat(tokenizer, HELLO, template="{{ messages[0].content }}") == list(b"Hello")
    assert tokenizer.encode("Hello") == list(b"Hello")


def test_the_tool_use_template_is_taken_when_tools_are_given():
    tokenizer = load_gguf(byte_metadata(**{"tokenizer.chat_template.tool_use": "{{ tools[0].x }}"}))
    assert encode_chat(tokenizer, HELLO, tools=[{"x": "T"}]) == [ord("T")]
    assert encode_chat(tokenizer, HELLO)[0] == 259


def test_the_date_is_an_argument():
    template = "{{ strftime_now('%d %b %Y %H:%M') }}"
    assert uses_date(template)
    assert not uses_date("{{ messages }}")
    for date in ("2026-09-01", datetime.date(2026, 9, 1)):
        assert render(template, HELLO, date=date) == "01 Sep 2026 00:00"
    with pytest.raises(RequestError, match="give a date"):
        render(template, HELLO)
    with pytest.raises(RequestError, match="date must be YYYY-MM-DD"):
        render(template, HELLO, date="yesterday")
    llama = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}none{% endif %}"
    assert render(llama, HELLO) == "none"


def test_generation_prompt_variables_and_special_tokens_reach_the_template():
    template = "{{ bos_token }}{{ add_generation_prompt }}{{ enable_thinking }}{{ eos_token }}"
    text = render(template, HELLO, bos_token="<s>", eos_token=None, enable_thinking=False)
    assert text == "<s>TrueFalse"
    assert render(template, HELLO, add_generation_prompt=False) == "False"


@pytest.mark.parametrize(
    ("messages", "options"),
    [
        ([{"role": "user", "content": "\ud800"}], {}),
        ([{"role": "\ud800", "content": "x"}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": "\ud800"}]}], {}),
        ([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"\udfff": 1}}]}], {}),
        (
            [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"a":"\\ud800"}'}]}],
            {},
        ),
        (HELLO, {"tools": [{"name": "\ud800"}]}),
        (HELLO, {"enable_thinking": "\ud800"}),
    ],
)
def test_v73_unpaired_surrogates_in_a_chat(messages: Any, options: dict[str, Any]):
    with pytest.raises(RequestError, match="unpaired surrogate"):
        render(TOOLS, messages, **options)


def test_same_text_as_transformers_on_smollm2_and_tools(tmp_path: Any):
    from transformers import AutoTokenizer

    vocabularies.smollm2().save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    talk = [{"role": "system", "content": " S "}, *HELLO, {"role": "assistant", "content": "Hi\n"}]
    for messages in (HELLO, talk):
        for flag in (True, False):
            wanted = theirs.apply_chat_template(
                messages, add_generation_prompt=flag, tokenize=True, return_dict=False
            )
            assert encode_chat(
                vocabularies.smollm2(), messages, add_generation_prompt=flag
            ) == list(wanted)
