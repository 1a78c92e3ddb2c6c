"""What a person sees beside the text: progress bars, notes, tables. Imports rich when asked."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import typer

Progress = Callable[[str, int, "int | None"], None]  # what, done, total (None: unknown)


@contextmanager
def progress_bars(wanted: bool = True) -> Iterator[Progress | None]:
    """A reporter that draws bars on stderr; None when nobody would see them."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


def note(text: str) -> None:
    """A dim line on stderr."""
    typer.secho(text, err=True, dim=True)


def print_json(content: Any) -> None:
    """Strict JSON on stdout: what is not finite becomes null."""
    typer.echo(json.dumps(_finite(content), indent=2, allow_nan=False))


def print_json_line(content: Any) -> None:
    """As print_json, on one line."""
    typer.echo(json.dumps(_finite(content), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    err: bool = False,
    colours: Mapping[str, str] | None = None,
) -> None:
    """A table on stdout or stderr: drawn for a terminal, tab-separated for a program. `colours`:
    of words in the first column, as typer names them."""
    if not (sys.stderr if err else sys.stdout).isatty():
        for row in (titles, *rows):
            typer.echo("\t".join(row), err=err)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(*titles)
    for row in rows:
        style = (colours or {}).get(row[0], "")
        drawn.add_row(Text(row[0], style), *(Text(cell) for cell in row[1:]))
    Console(stderr=err).print(drawn)


def facts(content: dict[str, Any]) -> None:
    """Name and value per line on stdout; nested mappings are indented."""
    for line in _lines(content, ""):
        typer.echo(line)


def _lines(content: dict[str, Any], indent: str) -> Iterator[str]:
    width = max((len(name) for name in content), default=0)
    for name, value in content.items():
        if isinstance(value, dict):
            yield f"{indent}{name}"
            yield from _lines(value, indent + "  ")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            yield f"{indent}{name.ljust(width)}  {'-' if shown is None else shown}"
