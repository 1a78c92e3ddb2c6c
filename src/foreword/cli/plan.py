"""`foreword plan`: what a pass costs here, what drafting brings, which options follow from it."""

from __future__ import annotations

import json as json_words
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.numbers import decimal, whole_number
from foreword.cli.options import EngineOptions, Json, Model, llm_arguments, read_text
from foreword.cli.show import note, print_json, progress_bars, table
from foreword.errors import ConfigError

if TYPE_CHECKING:
    from foreword.bench.plan import Plan
    from foreword.llm import LLM


def plan(
    engine: EngineOptions,
    model: Model,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='One prompt a line, or JSON lines with "prompt" or "turns". Default: built-in.',
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", parser=whole_number, metavar="N", help="Of each answer.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", parser=decimal, metavar="X", help="0 = greedy.")
    ] = 0.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write the options, for --config."),
    ] = None,
    json: Json = False,
) -> None:
    """Measure passes and drafting on this machine and recommend options."""
    from foreword.bench.plan import CONCURRENCIES, measure
    from foreword.bench.texts import mixed_prompts
    from foreword.llm import LLM

    if max_tokens < 2:
        raise ConfigError(f"--max-tokens must be at least 2 to plan for, got {max_tokens}")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"--output {output}: its folder does not exist; make it or name another")
    texts = mixed_prompts() if prompts is None else _read(prompts)
    arguments: dict[str, Any] = llm_arguments(replace(engine, prefix_caching=False))
    widths = [width for width in CONCURRENCIES if width <= len(texts)] or [1]
    with progress_bars(not json) as progress:
        llm = LLM(model, **{**arguments, "max_num_seqs": max(widths)}, progress=progress)
    try:
        _check(llm)
        ids = [llm.encode_chat([{"role": "user", "content": text}]) for text in texts]
        with progress_bars(not json) as progress:
            found = measure(llm, ids, max_tokens, temperature, widths, progress)
        options = found.recommended(llm)
    finally:
        llm.close()
    if json:
        print_json({"model": model, **_figures(found), "recommended": options})
    else:
        _show(found, options)
    if output is not None:
        _write(output, options)
        note(f"written: {output}; use it with --config {output}")


def _check(llm: LLM) -> None:
    from foreword.pace import MeasuredPace

    if not isinstance(llm.engine.parts.pace, MeasuredPace):
        raise ConfigError(
            "plan needs a drafter and a tree that looks at costs; leave out --drafter none, "
            "--node-budget and --tree, or name --tree goodput"
        )


def _read(path: Path) -> list[str]:
    """Prompts of a file. ConfigError names the line that is none."""
    texts = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        text: Any = line
        if line.lstrip().startswith("{"):
            try:
                entry = json_words.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}: line {number} is not JSON ({error}); mend it") from None
            turns = entry.get("turns")
            text = entry.get("prompt") or (turns[0] if isinstance(turns, list) and turns else None)
        if not isinstance(text, str) or not text:
            raise ConfigError(
                f'{path}: line {number} has no text under "prompt" or "turns"; give it one'
            )
        texts.append(text)
    if not texts:
        raise ConfigError(f"{path}: holds no prompt; write one a line")
    return texts


def _figures(found: Plan) -> dict[str, Any]:
    return {
        "milliseconds_by_rows": {rows: seconds * 1e3 for rows, seconds in found.curve},
        "overhead_ms": found.overhead * 1e3,
        "sources": {
            name: {"drafted": drafted, "accepted": accepted}
            for name, (drafted, accepted) in found.sources.items()
        },
        "tokens_per_s": {
            width: {"plain": asdict(plain), "drafting": asdict(drafting)}
            for width, (plain, drafting) in found.speeds.items()
        },
    }


def _show(found: Plan, options: dict[str, object]) -> None:
    typer.echo("A pass on this machine")
    table(("rows", "ms"), [(str(rows), f"{seconds * 1e3:.2f}") for rows, seconds in found.curve])
    typer.echo(f"\nA step takes {found.overhead * 1e3:.2f} ms beside its pass")
    typer.echo("\nDrafts by source")
    table(
        ("source", "drafted", "accepted", "rate"),
        [
            (name, str(drafted), str(accepted), f"{accepted / drafted:.0%}")
            for name, (drafted, accepted) in sorted(found.sources.items())
        ],
    )
    typer.echo("\nTokens per second, all requests together")
    columns = ("requests", "plain", "predicted", "drafting", "predicted", "speed-up", "length")
    table(
        columns,
        [
            (
                str(width),
                f"{plain.measured:.1f}",
                f"{plain.predicted:.1f} ({plain.error:+.0%})",
                f"{drafting.measured:.1f}",
                f"{drafting.predicted:.1f} ({drafting.error:+.0%})",
                f"{drafting.measured / plain.measured:.2f}x",
                f"{drafting.acceptance_length:.2f}",
            )
            for width, (plain, drafting) in found.speeds.items()
        ],
    )
    typer.echo("\nRecommended options")
    for name, value in options.items():
        typer.echo(f"{name}: {value}")


def _write(path: Path, options: dict[str, object]) -> None:
    lines = [f"{name}: {json_words.dumps(value)}" for name, value in options.items()]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}); choose another") from None
