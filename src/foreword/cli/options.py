"""The options that several commands share, and what they become for the library.

A field left at None is not passed on, so that defaults live in one place, the library.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from foreword.cli import adapters
from foreword.cli.config_file import ConfigFile
from foreword.cli.numbers import decimal, whole_number
from foreword.errors import ConfigError

_SPECULATION, _ENGINE = "Speculation", "Engine"


def _number(name: str, help: str, panel: str) -> Any:
    return typer.Option(name, parser=whole_number, metavar="N", help=help, rich_help_panel=panel)


def _decimal(name: str, help: str, panel: str) -> Any:
    return typer.Option(name, parser=decimal, metavar="X", help=help, rich_help_panel=panel)


def _text(name: str, help: str, panel: str, metavar: str = "NAME") -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar)


Model = Annotated[
    str,
    typer.Argument(help="Folder, .gguf file, org/name from the hub, or a built-in name."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")]


@dataclass(slots=True)
class EngineOptions:
    drafter: Annotated[
        str | None,
        _text(
            "--drafter",
            "auto, ngram, suffix, model, none, ... Never changes a token.",
            _SPECULATION,
        ),
    ] = None
    draft_model: Annotated[
        str | None,
        typer.Option(
            "--draft-model",
            "-md",
            help="Second model of the same vocabulary; implies --drafter model.",
            rich_help_panel=_SPECULATION,
            metavar="MODEL",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        int | None, _number("--num-speculative-tokens", "Longest draft path.", _SPECULATION)
    ] = None
    tree: Annotated[
        str | None, _text("--tree", "goodput, best_first, chain, ...", _SPECULATION)
    ] = None
    node_budget: Annotated[
        int | None,
        _number(
            "--node-budget", "Draft nodes per step, whole batch. Unset: what pays.", _SPECULATION
        ),
    ] = None
    draft_learning: Annotated[
        bool | None,
        typer.Option(
            "--draft-learning/--no-draft-learning",
            help="Let drafters learn from one request for the next.",
            rich_help_panel=_SPECULATION,
        ),
    ] = None
    prompt_lookup_max: Annotated[
        int | None, _number("--prompt-lookup-max", "ngram: longest match.", _SPECULATION)
    ] = None
    prompt_lookup_min: Annotated[
        int | None, _number("--prompt-lookup-min", "ngram: shortest match.", _SPECULATION)
    ] = None
    confidence_threshold: Annotated[
        float | None,
        _decimal("--confidence-threshold", "model: reach that ends a path.", _SPECULATION),
    ] = None
    speculative_config: Annotated[
        str | None,
        _text(
            "--speculative-config",
            'All of the above, {"method": ...}; single options win.',
            _SPECULATION,
            "JSON",
        ),
    ] = None
    numerics: Annotated[
        str | None, _text("--numerics", "float32, bfloat16, a16 or a8. Decides bits.", _ENGINE)
    ] = None
    quantization: Annotated[
        str | None,
        _text("--quantization", "int8 or int4: quantise at load. Decides bits.", _ENGINE),
    ] = None
    backend: Annotated[
        str | None, _text("--backend", "cpu, torch or reference. Decides bits.", _ENGINE)
    ] = None
    isa: Annotated[
        str | None, _text("--isa", "Of backend cpu: portable, avx2, avx512 or amx.", _ENGINE)
    ] = None
    device: Annotated[str | None, _text("--device", "cpu or cuda.", _ENGINE)] = None
    threads: Annotated[
        int | None, _number("--threads", "Default: affinity, quota, OMP_NUM_THREADS.", _ENGINE)
    ] = None
    max_model_len: Annotated[
        int | None, _number("--max-model-len", "Context, prompt and output together.", _ENGINE)
    ] = None
    max_num_seqs: Annotated[
        int | None, _number("--max-num-seqs", "Requests running at once.", _ENGINE)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, _number("--max-num-batched-tokens", "Rows of one pass at most.", _ENGINE)
    ] = None
    kv_cache_memory: Annotated[
        int | None, _number("--kv-cache-memory", "Bytes, such as 2G or 512M.", _ENGINE)
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        _text("--kv-cache-dtype", "auto, float32, bfloat16 or int8. Decides bits.", _ENGINE),
    ] = None
    kv_store: Annotated[str | None, _text("--kv-store", "paged or dense.", _ENGINE)] = None
    prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--prefix-caching/--no-prefix-caching",
            help="Reuse K and V of equal prefixes.",
            rich_help_panel=_ENGINE,
        ),
    ] = None
    generation_config: Annotated[
        str | None, _text("--generation-config", "auto or none.", _ENGINE)
    ] = None
    revision: Annotated[
        str | None, _text("--revision", "Branch, tag or commit on the hub.", _ENGINE)
    ] = None
    lora_modules: Annotated[
        list[Any] | None,
        typer.Option(
            "--lora-modules",
            parser=adapters.named_folder,
            metavar="NAME=FOLDER",
            help=adapters.HELP,
            rich_help_panel=_ENGINE,
        ),
    ] = None
    enable_lora: Annotated[bool, typer.Option("--enable-lora", hidden=True)] = False
    enable_deterministic_inference: Annotated[
        bool, typer.Option("--enable-deterministic-inference", hidden=True)
    ] = False
    config: ConfigFile = None


def llm_arguments(options: EngineOptions, seed: int | None = None) -> dict[str, Any]:
    """Keyword arguments of `LLM`. Raises ConfigError for a malformed --speculative-config."""
    given = {
        name: getattr(options, name)
        for name in (
            "numerics",
            "quantization",
            "backend",
            "isa",
            "device",
            "threads",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "kv_cache_memory",
            "kv_cache_dtype",
            "kv_store",
            "generation_config",
            "revision",
        )
    }
    given["enable_prefix_caching"] = options.prefix_caching
    given["seed"] = seed
    given["adapters"] = adapters.named_folders(options.lora_modules) or None
    if options.enable_lora:
        typer.echo("note: --enable-lora is not needed here, --lora-modules is enough", err=True)
    if options.enable_deterministic_inference:
        typer.echo("note: --enable-deterministic-inference is always on here", err=True)
    arguments = {name: value for name, value in given.items() if value is not None}
    return {**arguments, "speculative_config": speculative_config(options)}


def speculative_config(options: EngineOptions) -> dict[str, Any]:
    """The mapping `LLM` takes: --speculative-config with the single options on top."""
    config = mapping(options.speculative_config)
    single = {
        "method": options.drafter,
        "model": options.draft_model,
        "num_speculative_tokens": options.num_speculative_tokens,
        "tree": options.tree,
        "node_budget": options.node_budget,
        "learning": options.draft_learning,
        "prompt_lookup_max": options.prompt_lookup_max,
        "prompt_lookup_min": options.prompt_lookup_min,
        "confidence_threshold": options.confidence_threshold,
    }
    return config | {name: value for name, value in single.items() if value is not None}


def mapping(text: str | None) -> dict[str, Any]:
    """The JSON object of --speculative-config; none is an empty one."""
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"--speculative-config is not valid JSON ({error}): {text}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"--speculative-config must be a JSON object, got {text}")
    return value


def read_text(path: Path) -> str:
    """A prompt from a file, `-` = stdin. Raises ConfigError when it cannot be read as UTF-8."""
    import sys

    name = "stdin" if str(path) == "-" else str(path)
    try:
        data = sys.stdin.buffer.read() if name == "stdin" else path.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read ({error.strerror}); give a text file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{name}: is not UTF-8 text at byte {error.start}; convert it first"
        ) from None
