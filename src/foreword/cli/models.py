"""`foreword models list | pull | info`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.aliases import plain
from foreword.cli.numbers import size_text
from foreword.cli.options import Json, Model
from foreword.cli.show import facts, print_json, progress_bars, table

if TYPE_CHECKING:
    from foreword.model.weights.checkpoint import Checkpoint

Revision = Annotated[
    str | None, typer.Option("--revision", help="Branch, tag or commit on the hub.")
]
app = typer.Typer(help="List, fetch and inspect models.")
_NAMES = {"token_normalize_func": plain}


@app.command("list", context_settings=_NAMES)
def list_command(json: Json = False) -> None:
    """The built-in models. Folders, .gguf files and org/name work everywhere, too."""
    from foreword.model.weights.catalogue import list_models

    found = list_models()
    if json:
        rows = [{**asdict(one), "path": str(one.path)} for one in found]
        print_json({"models": rows})
        return
    table(
        ("name", "size", "here", "description"),
        [
            (one.name, size_text(one.size), "yes" if one.cached else "no", one.description)
            for one in found
        ],
    )


@app.command("pull", context_settings=_NAMES)
def pull(model: Model, revision: Revision = None, json: Json = False) -> None:
    """Fetch a model, check it, and print where it lies."""
    from foreword.model.weights.open import locate, open_path

    with progress_bars(not json) as progress:
        path = locate(model, revision, progress)
        checkpoint = open_path(path)
    if json:
        print_json({"path": str(path), "bytes": checkpoint.stored_bytes})
    else:
        typer.echo(str(path))


@app.command("info", context_settings=_NAMES)
def info(model: Model, revision: Revision = None, json: Json = False) -> None:
    """What a model is, and the memory it needs. Fetches it if it is not here."""
    from foreword.model.weights.open import open_checkpoint

    with progress_bars(not json) as progress:
        checkpoint = open_checkpoint(model, revision, progress)
    content = describe(model, checkpoint)
    if json:
        print_json(content)
        return
    for part in [content, *content["memory"].values()]:
        for key in [key for key in part if key.endswith("bytes") or key.startswith("kv_bytes")]:
            part[key] = size_text(part[key])
    facts(content)


def describe(model: str, checkpoint: Checkpoint) -> dict[str, Any]:
    """Plain data; sizes in bytes."""
    from foreword.build import load_tokenizer

    config = asdict(checkpoint.config)
    windows = Counter("all" if size is None else str(size) for size in config.pop("windows"))
    tokenizer = load_tokenizer(checkpoint)
    return {
        "name": model,
        "path": str(checkpoint.path),
        "fingerprint": checkpoint.fingerprint(),
        "architecture": checkpoint.config.architecture,
        "context": checkpoint.config.max_position,
        "parameters": sum(_count(stored.shape) for stored in checkpoint.tensors.values()),
        "bytes": checkpoint.stored_bytes,
        "files": [file.name for file in checkpoint.files],
        "tensor_types": dict(Counter(stored.kind for stored in checkpoint.tensors.values())),
        "tokens": tokenizer.vocab_size,
        "eos_ids": sorted(checkpoint.eos_ids),
        "chat_template": tokenizer.chat_template is not None,
        "generation_defaults": checkpoint.generation,
        "config": {**config, "rope": _set(config["rope"]), "layers_by_window": dict(windows)},
        "memory": {mode: _memory(model, mode, checkpoint) for mode in _modes()},
    }


def _modes() -> tuple[str, ...]:
    from foreword.config import NUMERICS

    return NUMERICS


def _memory(model: str, mode: str, checkpoint: Checkpoint) -> dict[str, int]:
    """Weights once packed, and K and V of one position and of one full context."""
    from foreword.config import EngineConfig
    from foreword.fit import weight_bytes

    shape = checkpoint.config
    item = 4 if mode == "float32" else 2
    position = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * item
    return {
        "weight_bytes": weight_bytes(EngineConfig(model, numerics=mode), checkpoint),
        "kv_bytes_per_token": position,
        "kv_bytes_full_context": position * shape.max_position,
    }


def _set(fields: dict[str, Any]) -> dict[str, Any]:
    """Without the fields this kind of rope leaves open."""
    shown = {name: value for name, value in fields.items() if value is not None}
    if "factors" in shown:
        shown["factors"] = f"{len(shown['factors'])} from the file"
    return shown


def _count(shape: tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result
