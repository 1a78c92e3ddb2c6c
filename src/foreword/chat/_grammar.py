"""Pieces of Lark grammars for tool calls, as llguidance reads them: literals, JSON schemas inline.

JSON is written with the one spelling that chat templates use (", " and ": "): blanks are bounded
(V48), and most of a call is forced, which drafts it for free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreword.chat.events import Tools

Literal = Callable[[str], str]
"""The spelling of a marker in a grammar: a quoted text, or the name of a special token."""

_SPELLING = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Mapping[str, Any]) -> str:
    """A JSON value of this schema, inline."""
    return "%json " + json.dumps({**schema, "x-guidance": _SPELLING}, ensure_ascii=False)


def object_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, whatever the schema leaves open."""
    return {"type": "object", **schema}


def json_bodies(tools: Tools, key: str) -> tuple[str, str]:
    """(alternatives, rules) for `{"name": ..., key: {...}}`, one rule a tool: each schema keeps
    its own root, where its references point."""
    names = [f"body_{index}" for index in range(len(tools))]
    rules = [
        f"{rule}: {quoted(_before(name, key))} {rule}_arguments {quoted('}')}\n"
        f"{rule}_arguments: {json_value(object_schema(schema))}\n"
        for rule, (name, schema) in zip(names, tools.items(), strict=True)
    ]
    return f"({' | '.join(names)})", "".join(rules)


def _before(name: str, key: str) -> str:
    return f'{{"name": {quoted(name)}, {quoted(key)}: '


def parameters(schema: Mapping[str, Any]) -> list[tuple[str, dict[str, Any], bool]]:
    """(name, schema with the definitions it may refer to, required) in the order of the schema."""
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    required = schema.get("required", ())
    return [
        (name, {**(own if isinstance(own, Mapping) else {}), **shared}, name in required)
        for name, own in schema.get("properties", {}).items()
    ]


def reply_with_tag(opening: str, many: bool) -> str:
    """`reply`: any text, and wherever it holds the opening tag, a `tail` behind it."""
    tag = "pre" if opening.startswith('"') else f"text? {opening}"
    rules = f"pre[suffix={opening}]: /(?s:.*)/\n" if tag == "pre" else ""
    calls = f"({tag} tail)*" if many else f"({tag} tail)?"
    rest = "text?" if many else ""
    return f"reply: {calls} {rest} | text?\n{rules}text: /(?s:.+)/\n"


def reply_at_start(call: str) -> str:
    """`reply`: calls, or a text that does not match the regular expression `call`."""
    return f"reply: calls | PLAIN\nPLAIN: /(?s:.*)/ & ~{call}\n"


def python_call(rule: str, name: str, schema: Mapping[str, Any]) -> str:
    """Rules for `name(a=1, b="x")`: keywords in the order of the schema, optional ones perhaps.
    Values in JSON's spelling, which is Python's but for three names. `{rule}_leads` has the list's
    bracket before it: in one piece, so that plain text cannot claim it."""
    items = parameters(schema)
    rules = [
        f"{rule}: {quoted(name + '(')} {rule}_0_first {quoted(')')}\n",
        f"{rule}_leads: {quoted('[' + name + '(')} {rule}_0_first {quoted(')')}\n",
    ]
    for index, (parameter, own, required) in enumerate(items):
        value = f"{rule}_value_{index}"
        rules.append(f"{value}: {quoted(parameter + '=')} {json_value(own)}\n")
        then = f"{rule}_{index + 1}"
        for place, comma in (("first", ""), ("more", quoted(", ") + " ")):
            skip = "" if required else f" | {then}_{place}"
            rules.append(f"{rule}_{index}_{place}: {comma}{value} {then}_more{skip}\n")
    last = f"{rule}_{len(items)}"
    return "".join([*rules, f'{last}_first: ""\n', f'{last}_more: ""\n'])


def tagged_call(rule: str, name: str, schema: Mapping[str, Any]) -> str:
    """Rules for <function=name> with its <parameter=...> in the order of the schema."""
    end = "</parameter>"  # what the parser ends a value at, so no text may hold it
    last = f"\n{end}\n"
    parts, rules = [], []
    for index, (parameter, own, required) in enumerate(parameters(schema)):
        item = f"{rule}_item_{index}"
        if own.get("type") == "string" and not _closed(own):
            rules.append(f"{item}_text[suffix={quoted(end)}]: /(?s:.*)/\n")
            value = f'{item}_text "\\n"'
        elif own.get("type") == "string":
            value = f"({_choice(own)}) {quoted(last)}"
        else:
            value = f"{json_value(own)} {quoted(last)}"
        rules.append(f"{item}: {quoted(f'<parameter={parameter}>' + chr(10))} {value}\n")
        parts.append(item if required else f"{item}?")
    body = " ".join([quoted(f"<function={name}>\n"), *parts, quoted("</function>")])
    return "".join([f"{rule}: {body}\n", *rules])


def _closed(schema: Mapping[str, Any]) -> bool:
    return "enum" in schema or "const" in schema


def _choice(schema: Mapping[str, Any]) -> str:
    options: Sequence[Any] = schema.get("enum") or [schema["const"]]
    return " | ".join(quoted(str(option)) for option in options)
