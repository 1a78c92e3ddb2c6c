"""`foreword convert FILE.gguf --to hf OUT`: write a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foreword.cli.options import Json, Model
from foreword.cli.show import note, print_json, progress_bars
from foreword.errors import ConfigError

FORMATS = ("hf",)


def convert(
    model: Model,
    out: Annotated[Path, typer.Argument(help="A new or empty folder.")],
    to: Annotated[str, typer.Option("--to", help="hf, the only format.")],
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32 loses nothing; bfloat16, float16 round.")
    ] = "float32",
    json: Json = False,
) -> None:
    """Write a model as config.json, safetensors and tokenizer files."""
    if to not in FORMATS:
        raise ConfigError(f"--to must be one of {', '.join(FORMATS)}; got {to!r}")
    from foreword.build import load_tokenizer
    from foreword.model.weights.convert import convert_to_hf
    from foreword.model.weights.open import open_checkpoint

    with progress_bars(not json) as progress:
        checkpoint = open_checkpoint(model, None, progress)
    tokenizer = load_tokenizer(checkpoint)
    convert_to_hf(checkpoint, out, tokenizer.save, dtype)
    files = sorted(file.name for file in out.iterdir())
    if json:
        print_json({"path": str(out), "dtype": dtype, "files": files})
    else:
        note(f"{len(checkpoint.tensors)} tensors written as {dtype}")
        typer.echo(str(out))
