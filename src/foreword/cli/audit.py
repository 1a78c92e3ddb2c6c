"""`foreword audit`: hands its options to the audit room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from foreword.cli.numbers import whole_number
from foreword.cli.options import Json, Model


@dataclass(slots=True)
class AuditOptions:
    """What `foreword.audit.command.run` reads."""

    model: Model
    quick: Annotated[bool, typer.Option("--quick", help="Fewer settings and requests.")] = False
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Re-derive a result of generate --json."),
    ] = None
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="Instead of the built-in ones.")
    ] = None
    numerics: Annotated[str, typer.Option("--numerics", help="float32 or bfloat16.")] = "float32"
    backend: Annotated[str, typer.Option("--backend", help="torch or reference.")] = "torch"
    threads: Annotated[int | None, typer.Option("--threads", parser=whole_number, metavar="N")] = (
        None
    )
    drafters: Annotated[
        str | None, typer.Option("--drafters", help="Names, joined by commas. Default: all.")
    ] = None
    json: Json = False


def audit(options: AuditOptions) -> int:
    """Prove on this machine that nothing moves a bit: replay requests under many settings."""
    from foreword.audit.command import run

    return run(options)
