"""Options of `generate` that give the text a form: a schema, a pattern, choices or a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from foreword.cli.options import read_text
from foreword.errors import RequestError
from foreword.params import StructuredOutput

_FORM = "Form of the text"


def _form(name: str, help: str, metavar: str) -> Any:
    return typer.Option(name, help=help, rich_help_panel=_FORM, metavar=metavar)


@dataclass(slots=True)
class FormOptions:
    json_schema: Annotated[
        str | None, _form("--json-schema", "The text is JSON of this schema.", "FILE|TEXT")
    ] = None
    regex: Annotated[
        str | None, _form("--regex", "The whole text matches this expression.", "REGEX")
    ] = None
    choice: Annotated[
        list[str] | None, _form("--choice", "The text is one of these. Repeat.", "TEXT")
    ] = None
    grammar: Annotated[
        str | None, _form("--grammar", "Lark or GBNF grammar of the text.", "FILE|TEXT")
    ] = None


def structured_output(options: FormOptions) -> StructuredOutput | None:
    """What the options ask for. Raises RequestError for more than one form, ConfigError for a file
    that cannot be read."""
    given = {
        "--json-schema": options.json_schema,
        "--regex": options.regex,
        "--choice": options.choice,
        "--grammar": options.grammar,
    }
    named = [name for name, value in given.items() if value is not None]
    if not named:
        return None
    if len(named) > 1:
        raise RequestError(f"give one form only, not {' and '.join(named)}", "structured_outputs")
    return StructuredOutput(
        json=_text_of(options.json_schema, ("{",)),
        regex=options.regex,
        choice=options.choice,
        grammar=_text_of(options.grammar, (":",)),
    )


def _text_of(value: str | None, marks: tuple[str, ...]) -> str | None:
    """A text holds one of its marks and is no file; anything else is read as a file."""
    if value is None or (any(mark in value for mark in marks) and not _is_file(value)):
        return value
    return read_text(Path(value))


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):  # too long for a name, or a NUL in it
        return False
