"""Tool-call styles: one reply read whole, in any pieces, and as the grammar wants it."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import llguidance
import pytest

import text_vocabularies as vocabularies
from foreword.chat.events import Call, ChatMessage, Content, ToolCall
from foreword.chat.names import guess_style, load_style, reasoning_name, style_names
from foreword.errors import ConfigError

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["C", "F"]},
        },
        "required": ["city"],
    },
    "now": {},
}
OSLO = {"city": 'Oslo "}</tool_call>', "days": 3}
HERMES = (
    '<tool_call>\n{"name": "get_weather", "arguments": '
    + json.dumps(OSLO)
    + '}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
LLAMA = '{"name": "get_weather", "parameters": ' + json.dumps(OSLO) + "}"
PYTHON = "[get_weather(city='Oslo \"}</tool_call>', days=3), now()]"
CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs\n lo\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>"
)
NOW = ("now", {})
BOTH = [("get_weather", OSLO), NOW]

# style, reply, content, calls (name and parsed arguments, or the text of cut ones)
REPLIES: list[tuple[str, str, str | None, list[tuple[str, Any]]]] = [
    ("hermes", HERMES, None, BOTH),
    ("hermes", "Let me see.\n\n" + HERMES + "\n", "Let me see.", BOTH),
    ("hermes", HERMES + "\nDone.", "Done.", BOTH),
    ("hermes", "  plain <tool answer \n", "  plain <tool answer \n", []),
    ("hermes", "a <tool_call> b", "a <tool_call> b", []),
    ("hermes", '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}', None, [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', None, [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', None, [("f", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}', None, [("f", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}', None, []),
    ("hermes", '<tool_call>{"name":"f","arguments":{}}\n{"name":"g"}</tool_call>', None,
     [("f", {}), ("g", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "Os', None, [("f", '{"a": "Os')]),
    ("hermes", '<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f', []),
    ("hermes", '<tool_call>{"name":"f","arguments":{"köln": "日"}}</tool_call> <tool', "<tool",
     [("f", {"köln": "日"})]),
    ("llama3_json", LLAMA, None, BOTH[:1]),
    ("llama3_json", "\n<|python_tag|>" + LLAMA + "; " + LLAMA, None, BOTH[:1] * 2),
    ("llama3_json", LLAMA + '\n{"name": "now", "parameters": {}}', None, BOTH),
    ("llama3_json", '{"type": "function", "name": "now", "parameters": {}}', None, [NOW]),
    ("llama3_json", '{"type":"function","function":{"name":"now"}}', None, [NOW]),
    ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3_json", '{"city": "Oslo"}', '{"city": "Oslo"}', []),
    ("llama3_json", "Say {x}. <|python_tag|>" + LLAMA, "Say {x}.", BOTH[:1]),
    ("llama3_json", "  hi", "  hi", []),
    ("llama3_json", LLAMA + " and more", "and more", BOTH[:1]),
    ("llama3_json", '{"na', '{"na', []),
    ("pythonic", PYTHON, None, BOTH),
    ("pythonic", "<|python_start|>" + PYTHON + "<|python_end|>", None, BOTH),
    ("pythonic", "[now()] done", "done", [NOW]),
    ("pythonic", "[1, 2, 3]", "[1, 2, 3]", []),
    ("pythonic", "[unknown(a=1)]", "[unknown(a=1)]", []),
    ("pythonic", "[now(a=[1, (2)], b={'k': None}, c=true, d=-1.5)]", None,
     [("now", {"a": [1, 2], "b": {"k": None}, "c": True, "d": -1.5})]),
    ("pythonic", "[now(a='it\\'s', b=", None, [("now", '{"a": "it\'s"')]),
    ("pythonic", r"[now(a='\d\n\\x\'')]", None, [("now", {"a": "\\d\n\\x'"})]),
    ("pythonic", "[now(a=1+x)]", None, [("now", '{"a": 1+x}')]),
    ("pythonic", "[now", "[now", []),
    ("qwen3_coder", CODER, None, [("get_weather", {"city": "Os\n lo", "days": 3}), NOW]),
    ("qwen3_coder", "Hm.\n<function=now>\n</function>", "Hm.", [NOW]),
    ("qwen3_coder", "<tool_call>\nx", "<tool_call>\nx", []),
    ("qwen3_coder", "<tool_call><function=now><parameter=x>true</parameter>"
     "<parameter=city>3</parameter></function></tool_call>", None,
     [("now", {"x": True, "city": 3})]),
    ("qwen3_coder", "<function=get_weather><parameter=city>3</parameter></function>", None,
     [("get_weather", {"city": "3"})]),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=x>\n1", None, [("now", "")]),
]  # fmt: skip


def read(style: str, pieces: list[str]) -> tuple[ChatMessage, list[list[Any]]]:
    parser = load_style(style).make(TOOLS)
    rounds = [parser.push(piece) for piece in pieces] + [parser.finish()]
    message = ChatMessage()
    for events in rounds:
        message.add(events)
    assert parser.finished <= len(message.tool_calls)
    return message, rounds


@pytest.mark.parametrize(("style", "reply", "content", "calls"), REPLIES)
def test_a_reply_is_taken_apart(style: str, reply: str, content: str | None, calls: list[Any]):
    message, _ = read(style, [reply])
    if content is None and not calls:
        assert message.content == reply  # malformed: given back as it came
    else:
        assert message.content == content
    assert [call.name for call in message.tool_calls] == [name for name, _ in calls]
    for call, (_, arguments) in zip(message.tool_calls, calls, strict=True):
        if isinstance(arguments, str):
            assert call.arguments == arguments
        else:
            assert json.loads(call.arguments) == arguments


@pytest.mark.parametrize(("style", "reply"), [(style, reply) for style, reply, _, _ in REPLIES])
def test_pieces_make_no_difference(style: str, reply: str):
    """Character by character and in 20 random cuts: the same message, and no part of a tag shown
    before it is certain that it is none."""
    whole, _ = read(style, [reply])
    generator = random.Random(reply)
    cuts = [list(reply)]
    for _ in range(20):
        places = sorted(generator.sample(range(len(reply) + 1), k=min(4, len(reply))))
        cuts.append([reply[a:b] for a, b in zip([0, *places], [*places, len(reply)], strict=True)])
    for pieces in cuts:
        assert read(style, pieces)[0] == whole


def test_names_and_arguments_are_given_out_while_they_arrive():
    message, rounds = read("hermes", list(HERMES))
    begun = next(i for i, events in enumerate(rounds) if any(isinstance(e, Call) for e in events))
    assert HERMES[: begun + 1].endswith('"arguments": {')
    assert rounds[begun][0] == Call(0, "get_weather")
    calls = [event for events in rounds for event in events if isinstance(event, Call)]
    given = [call.arguments for call in calls if call.index == 0]
    assert len(given) > len(json.dumps(OSLO))  # one a character
    assert "".join(given) == json.dumps(OSLO) == message.tool_calls[0].arguments
    _, rounds = read("pythonic", list(PYTHON))
    assert [e.arguments for r in rounds for e in r if isinstance(e, Call)][1] == (
        '{"city": ' + json.dumps(OSLO["city"])
    )


def test_half_a_tag_is_held_back():
    parser = load_style("hermes").make(TOOLS)
    assert parser.push("Hi <tool") == [Content("Hi")]
    assert parser.push("_cal") == []
    assert parser.push("m") == [Content(" <tool_calm")]


def test_ids_of_calls_follow_their_index():
    message = ChatMessage()
    message.add([Call(0, "f"), Call(0, None, "{}"), Call(1, "g", "{}")], "call_x_{}")
    assert message.tool_calls == [ToolCall("call_x_0", "f", "{}"), ToolCall("call_x_1", "g", "{}")]


@cache
def judge() -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(vocabularies.smollm2().raw.to_str())


def allowed(grammar: str, text: str) -> bool:
    """Whether the grammar takes all of the text and lets it end there."""
    matcher = llguidance.LLMatcher(judge(), llguidance.LLMatcher.grammar_from_lark(grammar))
    assert not matcher.is_error(), matcher.get_error()
    ids = judge().tokenize_str(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


TEXTS = {
    "hermes": HERMES,
    "llama3_json": LLAMA + '; {"name": "now", "parameters": {}}',
    "pythonic": PYTHON.replace("'", '"').replace('"}<', "<"),
    "qwen3_coder": CODER,
}


@pytest.mark.parametrize("style", style_names())
def test_what_the_grammar_allows_the_parser_reads(style: str):
    """Two calls; not with a wrong parameter, nor text; only one where one is asked for."""
    rules = "start: calls\n" + load_style(style).grammar(TOOLS, True, json.dumps)
    text = TEXTS[style]
    assert allowed(rules, text)
    message, _ = read(style, [text])
    assert [call.name for call in message.tool_calls] == ["get_weather", "now"]
    assert message.content is None
    assert not allowed(rules, text.replace("city", "town"))
    assert not allowed(rules, "Hello")
    assert not allowed(rules, text + "x")
    one = "start: calls\n" + load_style(style).grammar(TOOLS, False, json.dumps)
    assert not allowed(one, text)


@pytest.mark.parametrize("style", style_names())
def test_a_free_reply_may_call_but_only_by_the_schema(style: str):
    module = load_style(style)
    rules = "start: reply\n" + module.grammar(TOOLS, True, json.dumps)
    rules += module.free(True, json.dumps)
    text = TEXTS[style]
    for right in (text, "Hello {x} [y] <tool_c", ""):
        assert allowed(rules, right), right
    assert not allowed(rules, text.replace("city", "town"))


def test_a_text_value_ends_where_the_parser_ends_it():
    rules = "start: calls\n" + load_style("qwen3_coder").grammar(TOOLS, True, json.dumps)
    assert not allowed(rules, CODER.replace("Os\n lo", "Os</parameter> lo"))
    assert allowed(rules, CODER.replace("Os\n lo\n", "Os <parameter=x>"))


def test_blanks_between_json_elements_are_bounded():
    """V48: inside a call there is one spelling; a model that likes blanks is stopped."""
    rules = "start: calls\n" + load_style("hermes").grammar(TOOLS, True, json.dumps)
    assert not allowed(rules, HERMES.replace('{"city"', '{ "city"'))
    assert not allowed(rules, HERMES.replace(', "days"', ',  "days"'))
    assert not allowed(rules, HERMES + "\n\n")


def test_a_schema_keeps_its_own_references():
    schema = {
        "type": "object",
        "properties": {"at": {"$ref": "#/$defs/place"}},
        "required": ["at"],
        "$defs": {"place": {"enum": ["here", "there"]}},
    }
    for style, text in (
        ("hermes", '<tool_call>\n{"name": "go", "arguments": {"at": "here"}}\n</tool_call>'),
        ("pythonic", '[go(at="here")]'),
    ):
        rules = "start: calls\n" + load_style(style).grammar({"go": schema}, True, json.dumps)
        assert allowed(rules, text)
        assert not allowed(rules, text.replace("here", "hers"))


LLAMA_TEMPLATE = 'Respond in the format {"name": function name, "parameters": dictionary of names}'


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{{ tools }}<tool_call>\n{}</tool_call>", "hermes"),
        ("<tool_call>\n<function=example>", "qwen3_coder"),
        (LLAMA_TEMPLATE, "llama3_json"),
        ("<|python_tag|>", "llama3_json"),
        ("[func_name1(params_name1=value)]", "pythonic"),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_style(template: str, style: str | None):
    assert guess_style(template) == style
    assert sum(load_style(name).fits(template) for name in style_names()) == (style is not None)


def test_names_of_styles():
    assert style_names() == ["hermes", "llama3_json", "pythonic", "qwen3_coder"]
    assert load_style("qwen3") is load_style("hermes")
    with pytest.raises(ConfigError, match="choose one of hermes, llama3_json"):
        load_style("nonesuch")
    assert reasoning_name(None, "x<think>") == reasoning_name("qwen3", "") == "think"
    assert reasoning_name("none", "<think>") is None
    assert reasoning_name(None, "") is None
    with pytest.raises(ConfigError, match="reasoning_parser 'x'"):
        reasoning_name("x", "")
