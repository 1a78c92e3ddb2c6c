"""A chat request made ready: tools in the prompt, the style, the form, what is refused."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import llguidance
import pytest

import chat_templates as templates
import text_vocabularies as vocabularies
from chat_templates import HELLO, NOW, STYLES, TOOLS, WEATHER
from foreword.chat.names import load_style
from foreword.chat.prepare import ChatOptions, ChatPrompt, prepare
from foreword.chat.tools import read_tools
from foreword.errors import ConfigError, RequestError
from foreword.params import SamplingParams, StructuredOutput
from foreword.text.template import render

NAMED = {"type": "function", "function": {"name": "now"}}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def ready(messages: Any = HELLO, params: Any = None, **options: Any) -> ChatPrompt:
    options.setdefault("chat_template", templates.HERMES)
    params = params or SamplingParams()
    return prepare(vocabularies.smollm2(), messages, params, ChatOptions(**options))


def text(prompt: ChatPrompt) -> str:
    return vocabularies.smollm2().decode(prompt.ids, skip_special_tokens=False)


def grammar(prompt: ChatPrompt) -> str | None:
    form = prompt.params.structured_outputs
    return None if form is None else form.grammar


@cache
def judge() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(vocabularies.smollm2().raw.to_str())


def allowed(prompt: ChatPrompt, reply: str) -> bool:
    rules = llguidance.LLMatcher.grammar_from_lark(grammar(prompt))
    matcher = llguidance.LLMatcher(judge(), rules)
    assert not matcher.is_error(), matcher.get_error()
    ids = judge().tokenize_str(reply)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def call(name: str = "now", **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize("style", list(STYLES))
def test_the_template_shows_the_tools_and_tells_the_style(style: str):
    prompt = ready(tools=TOOLS, chat_template=STYLES[style])
    assert "get_weather" in text(prompt)
    assert prompt.form.style is load_style(style)
    assert set(prompt.form.tools or {}) == {"get_weather", "now"}
    assert prompt.form.many
    assert not prompt.form.thinks
    assert prompt.params == SamplingParams()


@pytest.mark.parametrize("style", list(STYLES))
def test_required_and_named_choices_bind_the_reply(style: str):
    template = STYLES[style]
    required = ready(tools=TOOLS, tool_choice="required", chat_template=template)
    named = ready(tools=TOOLS, tool_choice=NAMED, chat_template=template)
    now, weather = {
        "hermes": (call(), call("get_weather", city="Oslo")),
        "llama3_json": (
            '{"name": "now", "parameters": {}}',
            '{"name": "get_weather", "parameters": {"city": "Oslo"}}',
        ),
        "pythonic": ("[now()]", '[get_weather(city="Oslo")]'),
        "qwen3_coder": (
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
    }[style]
    assert allowed(required, now)
    assert allowed(required, weather)
    assert not allowed(required, weather.replace("city", "town"))
    assert not allowed(required, "Hello")
    assert allowed(named, now)
    assert not allowed(named, weather)
    assert not named.form.many
    assert "get_weather" not in text(named)


def test_none_hides_the_tools():
    prompt = ready(tools=TOOLS, tool_choice="none")
    assert prompt.ids == ready().ids
    assert prompt.form.style is None
    assert prompt.params.structured_outputs is None
    assert ready(tools=[]).ids == ready(tools=None, tool_choice="none").ids == ready().ids


def test_allowed_tools_are_the_only_ones():
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [NAMED]},
    }
    prompt = ready(tools=TOOLS, tool_choice=choice)
    assert prompt.form.tools == {"now": NOW["function"]["parameters"]}
    assert allowed(prompt, call() + "\n" + call())
    assert not allowed(prompt, call("get_weather", city="x"))
    choice["allowed_tools"]["mode"] = "auto"
    assert ready(tools=TOOLS, tool_choice=choice).params == SamplingParams()


def test_one_call_where_calls_are_not_parallel():
    prompt = ready(tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
    assert allowed(prompt, call())
    assert not allowed(prompt, call() + "\n" + call())
    assert not prompt.form.many
    assert not ready(tools=TOOLS, parallel_tool_calls=False).form.many


def test_a_strict_tool_is_bound_in_a_free_reply_too():
    strict = templates.tool("go", True, at={"enum": ["here", "there"]})
    prompt = ready(tools=[strict, NOW])
    assert allowed(prompt, "Hello")
    assert allowed(prompt, "Look:\n" + call("go", at="here") + "\n" + call("now", any="thing"))
    assert not allowed(prompt, call("go", at="nowhere"))
    assert not allowed(prompt, call("stay"))


def test_a_form_beside_tools_holds_for_replies_without_calls():
    params = SamplingParams(structured_outputs=StructuredOutput(json=SCHEMA))
    prompt = ready(params=params, tools=TOOLS)
    assert allowed(prompt, '{"ok": true}')
    assert allowed(prompt, call("now"))
    assert not allowed(prompt, "Hello")
    for form, right in (
        (StructuredOutput(choice=("yes", "no")), "yes"),
        (StructuredOutput(regex="a+/b"), "aa/b"),
        (StructuredOutput(json_object=True), '{"x": 1}'),
    ):
        prompt = ready(params=SamplingParams(structured_outputs=form), tools=TOOLS)
        assert allowed(prompt, right)
        assert not allowed(prompt, "zz")
    own = SamplingParams(structured_outputs=StructuredOutput(grammar='start: "x"'))
    with pytest.raises(RequestError, match="a grammar cannot stand beside tools"):
        ready(params=own, tools=TOOLS)


def test_without_tools_and_thoughts_the_form_is_the_users():
    for form in (StructuredOutput(json=SCHEMA), StructuredOutput(grammar='start: "x"')):
        params = SamplingParams(structured_outputs=form)
        assert ready(params=params).params is params


def test_a_model_that_thinks_may_think_before_the_form():
    params = SamplingParams(structured_outputs=StructuredOutput(json=SCHEMA))
    free = ready(params=params, chat_template=templates.QWEN3)
    assert free.form.thinks
    assert not free.form.opened
    assert allowed(free, '<think>\nhm {"ok"\n</think>\n\n{"ok": true}')
    assert allowed(free, '{"ok": true}')
    assert not allowed(free, "<think>\nhm\n</think>\n\nno")
    opened = ready(params=params, chat_template=templates.THINKING)
    assert opened.form.opened
    assert allowed(opened, 'hm\n</think>\n\n{"ok": true}')
    assert not allowed(opened, '{"ok": true}')
    off = ready(
        params=params,
        chat_template=templates.QWEN3,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert not off.form.thinks
    assert off.params is params
    calls = ready(tools=TOOLS, tool_choice="required", chat_template=templates.QWEN3)
    assert allowed(calls, "<think>\nhm\n</think>\n\n" + call())
    assert not ready(chat_template=templates.QWEN3, reasoning_parser="none").form.thinks


@pytest.mark.parametrize(
    ("options", "message", "parameter"),
    [
        ({"tool_choice": "required"}, "tool_choice needs tools", "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice needs tools", "tool_choice"),
        ({"tools": "x"}, "tools must be a list", "tools"),
        ({"tools": [1]}, r"tools\[0\] is of type 1", "tools[0]"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "'custom'; only", "tools[0]"),
        ({"tools": [{"type": "function"}]}, r"tools\[0\].function must be", "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "1 to 64 of", None),
        ({"tools": [{"type": "function", "function": {"name": "a", "x": 1}}]}, "'x'", None),
        ({"tools": [NOW, NOW]}, "'now' twice", "tools[1]"),
        ({"tools": [NOW] * 129}, "128 at most", "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
         "must be a JSON schema", None),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": 1.5}}]},
         "strict must be true or false", None),
        ({"tools": TOOLS, "tool_choice": "any"}, 'tool_choice must be "none"', "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         r"'x', which is not in tools \(get_weather, now\)", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}},
         "tool_choice must be", "tool_choice"),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls must be", None),
        ({"tools": TOOLS, "chat_template": "{{ messages }}"}, "does not show tools", "tools"),
        ({"tools": TOOLS, "chat_template": "{{ messages }}{{ tools }}"}, "no known style", "tools"),
        ({"chat_template_kwargs": {"zzz": 1}}, "has no such variable", "chat_template_kwargs.zzz"),
        ({"chat_template_kwargs": {"messages": []}}, "a field of its own", None),
        ({"chat_template_kwargs": 3}, "must be a mapping", "chat_template_kwargs"),
        ({"chat_template": "{% if %}"}, "does not parse", "messages"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_refused_by_name(
    options: dict[str, Any], message: str, parameter: str | None
):
    with pytest.raises(RequestError, match=message) as caught:
        ready(**options)
    assert caught.value.parameter
    if parameter is not None:
        assert caught.value.parameter == parameter


def test_smollm2s_own_template_shows_no_tools():
    with pytest.raises(RequestError, match="does not show tools"):
        ready(tools=TOOLS, chat_template=None)


def test_parsers_by_name():
    named = ready(tools=TOOLS, chat_template="{{ messages }}{{ tools }}", tool_call_parser="llama3")
    assert named.form.style is load_style("llama3_json")
    for option in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigError, match=f"{option} 'zzz'"):
            ChatOptions(**{option: "zzz"})


def test_the_choice_is_auto_when_there_are_tools():
    use = read_tools(TOOLS)
    assert (use.mode, use.many, use.strict) == ("auto", True, frozenset())
    assert read_tools([]).mode == read_tools(None).mode == "none"
    assert read_tools([replace_strict(WEATHER)]).strict == {"get_weather"}


def replace_strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


REAL = [templates.HERMES]
if vocabularies.QWEN_FILE:
    metadata = vocabularies._header(vocabularies.Path(vocabularies.QWEN_FILE))
    REAL.append(metadata["tokenizer.chat_template"])


@pytest.mark.parametrize("template", REAL)
@pytest.mark.parametrize("arguments", ['{"city":"Köln"}', {"city": "Köln"}])
def test_v78_a_history_of_calls_reads_as_the_model_writes_them(template: str, arguments: Any):
    """V78: what the template shows of a past call is what the parser reads of a new one."""
    history = [
        *HELLO,
        templates.called(arguments),
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
    ]
    shown = render(template, history, tools=TOOLS)
    assert '{"name": "get_weather", "arguments": {"city": "Köln"}}' in shown
    parser = load_style("hermes").make({})
    start = shown.index("Hello")
    events = parser.push(shown[start:]) + parser.finish()
    names = [event.name for event in events if hasattr(event, "name") and event.name]
    assert names == ["get_weather"]
