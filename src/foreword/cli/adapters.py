"""`--lora-modules NAME=FOLDER`, in vLLM's two spellings."""

from __future__ import annotations

import json
from typing import Any

import typer

from foreword.errors import ConfigError

HELP = "LoRA adapter, a PEFT folder. Repeatable."


def named_folder(value: Any) -> tuple[str, str]:
    """`name=folder` or {"name": ..., "path": ...} as (name, folder). Raises BadParameter."""
    if isinstance(value, tuple):
        return value[0], value[1]
    text = str(value).strip()
    name, equals, folder = text.partition("=")
    if text.startswith("{"):
        try:
            content = json.loads(text)
            name, equals, folder = content["name"], "=", content["path"]
        except (ValueError, KeyError, TypeError):
            equals = ""
    if not (equals and isinstance(name, str) and name and isinstance(folder, str) and folder):
        raise typer.BadParameter(f"{text!r} is not NAME=FOLDER")
    return name, folder


def named_folders(pairs: list[Any] | None) -> dict[str, str]:
    """Raises ConfigError for a name that is given twice."""
    found: dict[str, str] = {}
    for name, folder in pairs or ():
        if name in found:
            raise ConfigError(
                f"--lora-modules names {name!r} twice; give each adapter its own name"
            )
        found[name] = folder
    return found
