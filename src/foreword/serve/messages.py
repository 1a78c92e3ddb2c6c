"""The fields a message may have, by role. Their values are checked where messages are rendered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreword.errors import RequestError

_ALL = frozenset({"role", "content", "name"})
HONOURED: dict[str, frozenset[str]] = {
    "system": _ALL,
    "developer": _ALL,
    "user": _ALL,
    "assistant": _ALL | {"tool_calls", "reasoning_content"},
    "tool": _ALL | {"tool_call_id"},
}
REFUSED: dict[str, dict[str, str]] = {
    "assistant": {
        "audio": "models here read text",
        "function_call": "its successor is tool_calls",
        "refusal": "give it as content",
    },
    "function": {"role": 'its successor is role "tool"'},
}
PART = frozenset({"type", "text"})


def admit_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fresh messages for the template; "developer" is what templates call "system".

    Raises RequestError naming the message and the field.
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role == "function":
        raise RequestError(f"{where}.role: {REFUSED['function']['role']}", f"{where}.role")
    if not isinstance(role, str) or role not in HONOURED:
        raise RequestError(
            f"{where}.role must be one of {', '.join(HONOURED)}, got {role!r:.40}", f"{where}.role"
        )
    refused = REFUSED.get(role, {})
    for name, value in message.items():
        if name in refused and value is not None:
            reason = refused[name]
            raise RequestError(f"{where}.{name} is not supported: {reason}", f"{where}.{name}")
        if name not in HONOURED[role] and name not in refused:
            raise RequestError(
                f"{where} has unknown field {name!r:.80}; drop it", f"{where}.{name}"[:120]
            )
    _parts(message.get("content"), where)
    for index, call in enumerate(message.get("tool_calls") or ()):
        _call(call, f"{where}.tool_calls[{index}]")
    kept = {name: message[name] for name in message if name not in refused}
    kept = {k: v for k, v in kept.items() if v is not None or k == "content"}
    return {**kept, "role": "system" if role == "developer" else role}


def _parts(content: Any, where: str) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        extra = [name for name in part if name not in PART] if isinstance(part, Mapping) else []
        if extra and part.get("type") == "text" and part[extra[0]] is not None:
            at = f"{where}.content[{index}].{extra[0]}"
            raise RequestError(f"{at} is not supported; drop it", at)


def _call(call: Any, where: str) -> None:
    if isinstance(call, Mapping) and call.get("type", "function") != "function":
        raise RequestError(f"{where}.type must be 'function'", f"{where}.type")
    if isinstance(call, Mapping) and not isinstance(call.get("function"), Mapping):
        raise RequestError(f"{where}.function must be a mapping", f"{where}.function")
