"""`tools` and `tool_choice` as OpenAI's clients send them, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from foreword.errors import RequestError

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a reply may call. schemas: name -> JSON schema of the arguments. strict: names whose
    schema binds the model in mode "auto" as well. many: more than one call in a reply."""

    mode: Literal["none", "auto", "required"] = "none"
    shown: tuple[Mapping[str, Any], ...] = ()  # for the template
    schemas: Mapping[str, Mapping[str, Any]] | None = None
    strict: frozenset[str] = frozenset()
    many: bool = True


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: str | Mapping[str, Any] | None = None,
    parallel_tool_calls: bool | None = None,
) -> ToolUse:
    """tool_choice: "none", "auto" (default), "required", {"type": "function", "function": {"name":
    ...}} (exactly this one call), or {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}.
    With "none" the model is not told of the tools. parallel_tool_calls: default true.

    Raises RequestError naming the field.
    """
    if not isinstance(parallel_tool_calls, bool | None):
        raise RequestError("parallel_tool_calls must be true or false", "parallel_tool_calls")
    many = parallel_tool_calls is not False
    if not tools:
        if tool_choice not in (None, "none"):
            raise RequestError("tool_choice needs tools; give tools or drop it", "tool_choice")
        return ToolUse()
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise RequestError("tools must be a list of {type, function}", "tools")
    if len(tools) > MAX_TOOLS:
        raise RequestError(f"tools has {len(tools)} entries, {MAX_TOOLS} at most", "tools")
    named: dict[str, Mapping[str, Any]] = {}
    for index, tool in enumerate(tools):
        name = _function(tool, f"tools[{index}]")
        if name in named:
            raise RequestError(f"tools has {name!r} twice; names must differ", f"tools[{index}]")
        named[name] = tool
    mode, names = _choice(tool_choice, list(named))
    if mode == "none":
        return ToolUse()
    schemas = {name: named[name]["function"].get("parameters") or {} for name in names}
    strict = frozenset(name for name in names if named[name]["function"].get("strict"))
    one = isinstance(tool_choice, Mapping) and tool_choice.get("type") == "function"
    return ToolUse(mode, tuple(named[name] for name in names), schemas, strict, many and not one)


def _function(tool: Any, where: str) -> str:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise RequestError(
            f'{where} is of type {kind!r:.40}; only {{"type": "function", ...}} is supported', where
        )
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"{where}.function must be a mapping with a name", where)
    unknown = set(function) - {"name", "description", "parameters", "strict"}
    unknown |= set(tool) - {"type", "function"}
    if unknown:
        raise RequestError(f"{where} has unknown field {min(unknown)!r}; drop it", where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"{where}.function.name must be 1 to 64 of A-Z a-z 0-9 _ . -, got {name!r:.80}", where
        )
    if not isinstance(function.get("strict"), bool | None):
        raise RequestError(f"{where}.function.strict must be true or false", where)
    _schema(function.get("parameters"), f"{where}.function.parameters")
    return name


def _schema(schema: Any, where: str) -> None:
    if schema is None:
        return
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise RequestError(f"{where} must be a JSON schema of type object", where)
    if not isinstance(schema.get("properties", {}), Mapping):
        raise RequestError(f"{where}.properties must be a mapping", where)


def _choice(choice: Any, names: list[str]) -> tuple[Literal["none", "auto", "required"], list[str]]:
    if choice is None or choice == "auto":
        return "auto", names
    if choice == "none":
        return "none", []
    if choice == "required":
        return "required", names
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if kind == "function":
        return "required", [_chosen(choice, names)]
    if kind == "allowed_tools" and isinstance(allowed := choice.get("allowed_tools"), Mapping):
        mode, listed = allowed.get("mode", "auto"), allowed.get("tools")
        if mode in ("auto", "required") and isinstance(listed, list) and listed:
            chosen = {_chosen(tool, names) for tool in listed}
            return mode, [name for name in names if name in chosen]
    raise RequestError(
        'tool_choice must be "none", "auto", "required", {"type": "function", "function": {"name"}}'
        ' or {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}'
        f", got {choice!r:.80}",
        "tool_choice",
    )


def _chosen(choice: Any, names: list[str]) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in names:
        raise RequestError(
            f"tool_choice names {name!r:.80}, which is not in tools ({', '.join(names):.200})",
            "tool_choice",
        )
    return str(name)
