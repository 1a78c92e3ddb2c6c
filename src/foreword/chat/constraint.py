"""The form a reply with tools must have, as a grammar: what `tool_choice` and `strict` promise.

A model that thinks may think first; the form holds for what follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from foreword.chat import reasoning
from foreword.chat._grammar import Literal, json_value, quoted
from foreword.chat.events import Style, Tools
from foreword.chat.tools import ToolUse
from foreword.errors import RequestError
from foreword.params import StructuredOutput


def constrain(
    style: Style | None,
    use: ToolUse,
    asked: StructuredOutput | None,
    thinks: bool,
    opened: bool,
    literal: Literal,
) -> StructuredOutput | None:
    """The structured output of a chat request, None: free text.

    asked: what the request itself asks of the text; beside tools it holds for replies without
    calls. thinks: the model may think first; opened: it does already. A grammar of the user's own
    holds from the first token: it may allow thinking itself.
    Raises RequestError for a form that cannot stand beside tools.
    """
    body = _tools(style, use, asked, literal) if style is not None else None
    if body is None:
        body = None if asked is None or not thinks else _value(asked)
        if body is None:
            return asked
        body = f"reply: {body}\n"
    before, rules = _thinking(opened, literal) if thinks else ("", "")
    return StructuredOutput(grammar=f"start: {before}reply\n{rules}{body}")


def _tools(
    style: Style, use: ToolUse, asked: StructuredOutput | None, literal: Literal
) -> str | None:
    """Rules for `reply`, or None when the reply is free."""
    schemas: Tools = use.schemas or {}
    if use.mode == "required":
        return "reply: calls\n" + style.grammar(schemas, use.many, literal)
    if use.mode == "none" or (not use.strict and asked is None):
        return None
    bound = {name: schema if name in use.strict else {} for name, schema in schemas.items()}
    calls = style.grammar(bound, use.many, literal)
    if asked is None:
        return calls + style.free(use.many, literal)
    value = _value(asked)
    if value is None:
        raise RequestError(
            "a grammar cannot stand beside tools; use a JSON schema, a regex or a choice, or set"
            ' tool_choice to "none"',
            "structured_outputs",
        )
    return f"reply: calls | {value}\n{calls}"


def _value(asked: StructuredOutput) -> str | None:
    """The form as one expression of a grammar; None for a grammar of the user's own."""
    if asked.json is not None:
        schema: Any = asked.json
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except ValueError:
                schema = None
        if not isinstance(schema, Mapping):
            raise RequestError("structured output: json must be a JSON schema", "response_format")
        return json_value(schema)
    if asked.json_object:
        return json_value({"type": "object"})
    if asked.choice is not None:
        return "(" + " | ".join(map(quoted, asked.choice)) + ")"
    if asked.regex is not None:
        return "/" + asked.regex.replace("/", "\\/") + "/"
    return None


def _thinking(opened: bool, literal: Literal) -> tuple[str, str]:
    """(what stands before the reply, rules)."""
    closing = literal(reasoning.CLOSE)
    blank = "gap: /\\n{0,2}/\n"
    if closing.startswith('"'):
        rules = f"thought: within gap\nwithin[suffix={closing}]: /(?s:.*)/\n{blank}"
    else:
        rules = f"thought: within? {closing} gap\nwithin: /(?s:.+)/\n{blank}"
    if opened:
        return "thought ", rules
    return "think? ", f"think: {literal(reasoning.OPEN)} thought\n{rules}"
