"""`--config FILE.yaml`: options from a file, by their command-line names. The command line wins."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from foreword.cli.aliases import UsageError, plain
from foreword.errors import ConfigError


def load_config(context: typer.Context, path: Path | None) -> Path | None:
    """Option callback: makes the file's values the defaults of this command's options."""
    if path is not None:
        defaults = dict(context.default_map or {})
        for key, value in _read(path).items():
            name, setting = _setting(context, path, str(key), value)
            defaults[name] = setting
        context.default_map = defaults
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        callback=load_config,
        is_eager=True,
        metavar="FILE",
        help="YAML file of options by name; the command line wins.",
    ),
]


def _read(path: Path) -> dict[Any, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: is not valid YAML ({reason}); correct it") from None
    if not isinstance(content, dict | None):
        raise ConfigError(f"{path}: must hold a mapping of option names to values")
    return content or {}


def _setting(context: typer.Context, path: Path, key: str, value: Any) -> tuple[str, Any]:
    """(parameter name, value as the parameter wants it)."""
    if isinstance(value, dict):
        value = json.dumps(value)  # what the command line would hold
    normalize: Callable[[str], str] = context.token_normalize_func or plain
    try:
        flag = "--" + normalize(key)
    except UsageError as error:
        raise ConfigError(f"{path}: {error.format_message()}") from None
    for parameter in context.command.params:
        name = str(parameter.name)
        argument = parameter.param_type_name == "argument" and flag == f"--{plain(name)}"
        if flag in parameter.opts or argument:
            wrap = getattr(parameter, "multiple", False) and not isinstance(value, list)
            return name, [value] if wrap else value
        if flag in parameter.secondary_opts and isinstance(value, bool):
            return name, not value
    known = [option for parameter in context.command.params for option in parameter.opts]
    close = difflib.get_close_matches(flag, known, n=1)
    hint = f"did you mean {plain(close[0].lstrip('-'))}?" if close else "remove it"
    raise ConfigError(f"{path}: unknown option {key!r}; {hint}")
