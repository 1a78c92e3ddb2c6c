"""`foreword audit`: hands its options to the audit room."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from foreword.cli import adapters
from foreword.cli.numbers import whole_number
from foreword.cli.options import Json, Model
from foreword.errors import ConfigError


@dataclass(slots=True)
class Options:
    """What `foreword.audit.command.run` reads (its Protocol AuditOptions)."""

    model: Model
    quick: Annotated[bool, typer.Option("--quick", help="Fewer settings and requests.")] = False
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="FILE", help="Re-derive a result of generate --json."),
    ] = None
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="Instead of the built-in ones.")
    ] = None
    drafters: Annotated[
        str | None, typer.Option("--drafters", help="Names, joined by commas. Default: all.")
    ] = None
    draft_model: Annotated[
        str | None,
        typer.Option("--draft-model", "-md", help="For drafter model. Default: the model itself."),
    ] = None
    numerics: Annotated[
        str | None, typer.Option("--numerics", help="float32, bfloat16, a16 or a8.")
    ] = None
    quantization: Annotated[
        str | None, typer.Option("--quantization", help="int8 or int4: quantise at load.")
    ] = None
    kv_cache_dtype: Annotated[
        str, typer.Option("--kv-cache-dtype", help="auto, float32, bfloat16 or int8.")
    ] = "auto"
    backend: Annotated[str | None, typer.Option("--backend", help="cpu, torch or reference.")] = (
        None
    )
    isa: Annotated[
        str | None,
        typer.Option("--isa", help="Of backend cpu: portable, avx2, avx512 or amx."),
    ] = None
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu"
    threads: Annotated[int | None, typer.Option("--threads", parser=whole_number, metavar="N")] = (
        None
    )
    lora_modules: Annotated[
        list[Any] | None,
        typer.Option(
            "--lora-modules",
            parser=adapters.named_folder,
            metavar="NAME=FOLDER",
            help=adapters.HELP,
        ),
    ] = None
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None
    seed: Annotated[
        int | None,
        typer.Option("--seed", parser=whole_number, metavar="N", help="Unset: drawn, printed."),
    ] = None
    distribution: Annotated[
        bool,
        typer.Option(
            "--distribution", help="Compare what is drawn with the model's own probabilities."
        ),
    ] = False
    acceptance: Annotated[
        list[str] | None,
        typer.Option(
            "--acceptance",
            metavar="NAME[:KEY=VALUE,...]",
            help="With --distribution: of accept/, beside exact. Default: all that can run.",
        ),
    ] = None
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="With --distribution: prompts, one a line."),
    ] = None
    scorer: Annotated[
        str | None,
        typer.Option(
            "--scorer",
            metavar="MODULE:FUNCTION",
            help="With --distribution: (prompt, text) -> a number, higher is better.",
        ),
    ] = None
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="With --distribution. Default: 1.")
    ] = None
    draws: Annotated[
        int | None,
        typer.Option(
            "--draws", parser=whole_number, metavar="N", help="With --distribution: per position."
        ),
    ] = None
    json: Json = False

    @property
    def adapters(self) -> dict[str, str]:
        return adapters.named_folders(self.lora_modules)


def audit(options: Options) -> int:
    """Prove on this machine that nothing moves a bit: replay requests under many settings."""
    if options.distribution:
        from foreword.audit.distribution_command import run as run_distribution

        return run_distribution(options)
    for name in ("acceptance", "prompts", "scorer", "temperature", "draws"):
        if getattr(options, name) is not None:
            raise ConfigError(f"--{name} goes with --distribution; add it, or leave --{name} out")
    from foreword.audit.command import run

    return run(options)
