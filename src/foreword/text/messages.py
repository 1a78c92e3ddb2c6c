"""Chat messages as users send them, checked and brought to the one shape templates see.

After `normalise` every message is a fresh mapping with a string `role`, a string `content` and tool
calls whose arguments are mappings. Knows no template and no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from foreword.errors import RequestError
from foreword.text.checks import check_texts

Message = dict[str, Any]


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Raises RequestError naming the message by its index.

    `content`: a string; a list of text parts, joined with newlines; null only beside tool calls
    ("" for the template). Tool-call `arguments`: a mapping, or a string holding a JSON object (""
    is the empty one); anything else is refused rather than encoded twice. Other keys pass through.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("messages must be a non-empty list of {role, content}", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def normalise_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Message] | None:
    """Tool schemas as fresh mappings; None when there are none. Raises RequestError."""
    if not tools:
        return None
    if isinstance(tools, (str, Mapping)) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools must be a list of mappings", "tools")
    check_texts(tools, "tools")
    return [dict(tool) for tool in tools]


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be a mapping with role and content", where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role must be a non-empty string, got {role!r}", where)
    check_texts(message, where)
    result = dict(message)
    calls = message.get("tool_calls")
    if calls:
        if isinstance(calls, (str, Mapping)) or not isinstance(calls, Sequence):
            raise RequestError(f"{where}.tool_calls must be a list", where)
        result["tool_calls"] = [
            _tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)
        ]
    may_be_null = role == "assistant" and bool(calls)
    result["content"] = _content(message.get("content"), may_be_null, f"{where}.content")
    return result


def _content(content: Any, may_be_null: bool, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_be_null:
        return ""
    if isinstance(content, Sequence):
        return "\n".join([_part(part, f"{where}[{index}]") for index, part in enumerate(content)])
    what = "null" if content is None else type(content).__name__
    raise RequestError(
        f"{where} is {what}; it must be a string or a list of text parts"
        " (null only for an assistant message with tool_calls)",
        where,
    )


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise RequestError(f"{where} is of type {kind!r}; this model reads text parts only", where)
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a string", where)
    return text


def _tool_call(call: Any, where: str) -> Message:
    if not isinstance(call, Mapping):
        raise RequestError(f"{where} must be a mapping", where)
    result = dict(call)
    if isinstance(call.get("function"), Mapping):
        result["function"] = _with_arguments(call["function"], f"{where}.function")
        return result
    return _with_arguments(result, where)


def _with_arguments(function: Mapping[str, Any], where: str) -> Message:
    if not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.name must be a string", where)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        check_texts(arguments, f"{where}.arguments")
    if not isinstance(arguments, Mapping):
        raise RequestError(
            f"{where}.arguments must be a JSON object, as a mapping or a string", where
        )
    return {**function, "arguments": dict(arguments)}
