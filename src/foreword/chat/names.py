"""Which style a model's chat template teaches, and styles and reasoning parsers by name."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from foreword.chat import reasoning, styles
from foreword.chat.events import Style
from foreword.errors import ConfigError

# Names that vLLM's and SGLang's users know.
ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen3": "hermes",
    "llama3": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen3_xml": "qwen3_coder",
}
REASONING = {"think": "think", "deepseek_r1": "think", "qwen3": "think"}


def style_names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(styles.__path__))


def load_style(name: str) -> Style:
    """Raises ConfigError listing the styles."""
    name = ALIASES.get(name, name)
    if name not in style_names():
        raise ConfigError(
            f"tool_call_parser {name!r} is not known; choose one of {', '.join(style_names())}"
        )
    return cast(Style, importlib.import_module(f"foreword.chat.styles.{name}"))


def guess_style(template: str) -> str | None:
    """The style a template teaches; None when it teaches none of ours."""
    return next((name for name in style_names() if load_style(name).fits(template)), None)


def reasoning_name(asked: str | None, template: str) -> str | None:
    """The reasoning parser: the one asked for ("none": none), or what the template calls for.

    Raises ConfigError for an unknown name.
    """
    if asked == "none":
        return None
    if asked is None:
        return "think" if reasoning.fits(template) else None
    if asked not in REASONING:
        known = ", ".join(sorted({*REASONING, "none"}))
        raise ConfigError(f"reasoning_parser {asked!r} is not known; choose one of {known}")
    return REASONING[asked]
