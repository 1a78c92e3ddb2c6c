"""The `foreword` command: puts the commands together, turns errors into one line and a status.

Status 0 done, 1 an error or a failed check, 2 a usage error, 130 interrupted. Nothing heavy is
imported before a command runs.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from foreword.cli import audit, bench, chat, convert, env, generate, models, plan, serve
from foreword.cli.aliases import UsageError, canonical, of_server, plain
from foreword.cli.grouping import grouped
from foreword.errors import ForewordError
from foreword.version import __version__

_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_OWN = {**_HELP_NAMES, "token_normalize_func": plain}
_ALIASED = {**_HELP_NAMES, "token_normalize_func": canonical}
_SERVER = {**_HELP_NAMES, "token_normalize_func": of_server}

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP_NAMES,
    help="Exact batched speculative decoding: faster, and never a token different.",
)
app.command(context_settings=_ALIASED)(grouped(generate.generate))
app.command(context_settings=_ALIASED)(grouped(chat.chat))
app.command(context_settings=_SERVER)(grouped(serve.serve))
app.command(context_settings=_ALIASED)(grouped(audit.audit))
app.command(context_settings=_ALIASED)(grouped(plan.plan))
app.add_typer(models.app, name="models")
app.add_typer(bench.app, name="bench")
app.command(context_settings=_OWN)(convert.convert)
app.command(context_settings=_OWN)(env.env)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foreword {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Tracebacks of errors; so does FOREWORD_DEBUG=1."),
    ] = False,
) -> None:
    """Debugging is read by `run`, before anything can go wrong."""


def main() -> None:
    """Entry point of the installed command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit status."""
    words = list(arguments) or ["--help"]
    debug, words = _debug_wanted(words)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal without UTF-8 shows what it can
            stream.reconfigure(errors="replace")
    try:
        status: Any = app(words, prog_name="foreword", standalone_mode=False)
    except Exception as error:
        return _failure(error, debug)
    except KeyboardInterrupt:
        return 130
    return status if isinstance(status, int) else 0


def _debug_wanted(words: list[str]) -> tuple[bool, list[str]]:
    """--debug may stand anywhere; as the value of an option it would make no sense."""
    rest = [word for word in words if word != "--debug"]
    wanted = len(rest) < len(words) or os.environ.get("FOREWORD_DEBUG", "") not in ("", "0")
    return wanted, rest


def _failure(error: Exception, debug: bool) -> int:
    """Say what went wrong on one line of stderr; returns the status."""
    if isinstance(error, typer.Abort):
        return 130
    if isinstance(error, BrokenPipeError):
        # The reader has gone; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if debug:
        import traceback

        traceback.print_exception(error)
    if isinstance(error, UsageError):
        _say(_usage(error))
        return 2
    if isinstance(error, ForewordError):
        _say(str(error))
    else:
        _say(f"{type(error).__name__}: {error}; this is a bug, --debug shows where")
    return 1


def _usage(error: Any) -> str:
    """What is wrong with the command line, and where to look."""
    command = error.ctx.command_path if error.ctx is not None else "foreword"
    name = getattr(error, "option_name", None)
    if type(error).__name__ == "NoSuchOption" and name:
        options = [] if error.ctx is None else error.ctx.command.params
        flags = [flag for option in options for flag in (*option.opts, *option.secondary_opts)]
        close = difflib.get_close_matches(plain(name), flags, n=1)
        hint = f"did you mean {close[0]}?" if close else f"see {command} --help"
        return f"unknown option {name}; {hint}"
    message = str(error.format_message()).strip().rstrip(".")
    return message if error.ctx is None else f"{message}; see {command} --help"


def _say(text: str) -> None:
    typer.secho("error: ", err=True, nl=False, fg="red")
    typer.echo(" ".join(text.split("\n")), err=True)
