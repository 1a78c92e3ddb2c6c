"""`foreword bench kernels | decode | drafting | perplexity`: tables, then one JSON object."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.aliases import canonical
from foreword.cli.grouping import grouped
from foreword.cli.numbers import whole_number
from foreword.cli.options import read_text
from foreword.cli.show import note, print_json_line, progress_bars, table
from foreword.errors import ConfigError

if TYPE_CHECKING:
    from foreword.bench.report import Report
    from foreword.bench.scale import Scale

DEFAULT_MODEL = "smollm2-135m-instruct"

Model = Annotated[
    str,
    typer.Argument(help="Folder, .gguf file, org/name from the hub, or a built-in name."),
]
Repeat = Annotated[
    int,
    typer.Option("--repeat", parser=whole_number, metavar="N", help="Rounds of all measurements."),
]
Json = Annotated[bool, typer.Option("--json", help="The JSON object alone, without the tables.")]


@dataclass(slots=True)
class MachineOptions:
    """How the model is run; what is left out is the library's default."""

    numerics: Annotated[
        str | None, typer.Option("--numerics", help="float32, bfloat16, a16 or a8.")
    ] = None
    quantization: Annotated[
        str | None, typer.Option("--quantization", help="int8 or int4: quantise at load.")
    ] = None
    backend: Annotated[str | None, typer.Option("--backend", help="cpu, torch or reference.")] = (
        None
    )
    isa: Annotated[
        str | None, typer.Option("--isa", help="Of backend cpu: portable, avx2, avx512 or amx.")
    ] = None
    threads: Annotated[
        int | None,
        typer.Option("--threads", parser=whole_number, metavar="N", help="Default: all usable."),
    ] = None
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Keyword arguments of LLM."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in found.items() if value is not None}


def kernels(
    machine: MachineOptions,
    model: Model = DEFAULT_MODEL,
    repeat: Repeat = 9,
    json: Json = False,
) -> None:
    """Passes of the model alone: decoding, widths 1 to 128, a prompt, a batch."""
    from foreword.bench.kernels import measure

    _run(measure, model, machine, repeat, json)


def decode(
    machine: MachineOptions,
    model: Model = DEFAULT_MODEL,
    repeat: Repeat = 5,
    json: Json = False,
) -> None:
    """What a user of the engine gets: plain decoding, a prompt, a batch."""
    from foreword.bench.decode import measure

    _run(measure, model, machine, repeat, json)


def drafting(
    machine: MachineOptions,
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[
        int, typer.Option("--tokens", parser=whole_number, metavar="N", help="Of each answer.")
    ] = 96,
    speculative_config: Annotated[
        str | None, typer.Option("--speculative-config", metavar="JSON", help="Of drafter auto.")
    ] = None,
    json: Json = False,
) -> None:
    """How far the chances that drafter auto gives its guesses can be relied on, by source."""
    from foreword.bench.drafting import measure, plot
    from foreword.cli.options import mapping
    from foreword.llm import LLM

    options = {"method": "auto", **mapping(speculative_config)}
    with progress_bars(not json) as progress:
        llm = LLM(model, **machine.given(), speculative_config=options, progress=progress)
    try:
        with progress_bars(not json) as progress:
            found = measure(llm, tokens, progress)
    finally:
        llm.close()
    if not json:
        for name, reliability in found.items():
            typer.echo("\n".join(plot(name, reliability)) + "\n")
    figures = {
        name: {
            "error": one.error,
            "guesses": sum(one.counts),
            "bins": [
                {"guesses": count, "said": said / count, "came": right / count}
                for count, said, right in zip(one.counts, one.said, one.right, strict=True)
                if count
            ],
        }
        for name, one in found.items()
    }
    print_json_line({"model": model, "tokens": tokens, "reliability": figures})


def perplexity(
    machine: MachineOptions,
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        Path | None, typer.Option("--text", help="UTF-8; default: prose that ships with Foreword.")
    ] = None,
    tokens: Annotated[
        int,
        typer.Option("--tokens", parser=whole_number, metavar="N", help="The text's first N ids."),
    ] = 4096,
    window: Annotated[
        int,
        typer.Option(
            "--window", parser=whole_number, metavar="N", help="Ids read from one empty context."
        ),
    ] = 1024,
    json: Json = False,
) -> None:
    """How well the model predicts a text, in windows that start from an empty context."""
    from dataclasses import asdict

    from foreword.bench.perplexity import score
    from foreword.bench.texts import perplexity_text
    from foreword.llm import LLM

    content = perplexity_text() if text is None else read_text(text)
    with progress_bars(not json) as progress:
        llm = LLM(
            model,
            **machine.given(),
            speculative_config={"method": "none"},
            max_num_seqs=1,
            progress=progress,
        )
    try:
        ids = llm.tokenizer.encode(content)
        if len(ids) < tokens:
            raise ConfigError(
                f"the text has {len(ids)} tokens, --tokens asks for {tokens}; lower it or give a "
                "longer --text"
            )
        with progress_bars(not json) as progress:
            found = score(llm.built, ids[:tokens], window, progress)
        built = llm.built
        setting = {
            "model": built.config.model,
            "numerics": built.config.numerics,
            "quantization": built.config.quantization,
            "backend": built.config.backend,
            "isa": built.isa,
            "kv_format": built.kv_format,
            "text": "alice.txt" if text is None else str(text),
            "window": window,
        }
    finally:
        llm.close()
    if not json:
        table(
            ("tokens", "windows", "perplexity", "nats per token", "seconds"),
            [
                (
                    str(found.tokens),
                    str(found.windows),
                    f"{found.perplexity:.4f}",
                    f"{found.nats_per_token:.6f}",
                    f"{found.seconds:.1f}",
                )
            ],
        )
    print_json_line({**setting, **asdict(found)})


def _run(measure: Any, model: str, machine: MachineOptions, repeat: int, json: bool) -> None:
    """Load, measure, show. `measure(session, rounds, progress)` gives a Report."""
    if repeat < 1:
        raise ConfigError(f"--repeat must be a whole number >= 1, got {repeat}")
    from foreword.bench.session import open_session

    with progress_bars(not json) as progress:
        session = open_session(model, machine.given(), scale(), progress)
    try:
        with progress_bars(not json) as progress:
            report = measure(session, repeat, progress)
    finally:
        session.close()
    show(report, json)


def scale() -> Scale:
    """The sizes that are measured; tests put smaller ones here."""
    from foreword.bench.scale import Scale

    return Scale()


def show(report: Report, json: bool) -> None:
    """Tables, unless only the object is wanted; the object is always the last line."""
    if not json:
        for number, one in enumerate(report.tables):
            typer.echo(("\n" if number else "") + one.title)
            table(one.columns, one.rows)
        for line in report.notes:
            note(line)
    print_json_line(report.figures)


_NAMES = {"token_normalize_func": canonical, "help_option_names": ["-h", "--help"]}
app = typer.Typer(help="Measure this machine's limits, and the engine against them.")
for _command in (kernels, decode, drafting, perplexity):
    app.command(context_settings=_NAMES)(grouped(_command))
