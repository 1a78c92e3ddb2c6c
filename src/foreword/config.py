"""Options of an engine, each part with its own small frozen dataclass. Unknown names are errors."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

from foreword.errors import ConfigError
from foreword.types import MAX_SEED

NUMERICS = ("float32", "bfloat16", "a16", "a8")
QUANTIZATIONS = ("int8", "int4")
KV_FORMATS = ("auto", "float32", "bfloat16", "int8")

# Names of drafters in other engines, in lower case.
METHODS = {"draft_model": "model", "standalone": "model", "prompt_lookup": "ngram"}


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """max_num_batched_tokens: rows in one pass at most (prefill chunks + tree nodes).
    max_num_seqs: requests running at once."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256

    def __post_init__(self) -> None:
        positive(self, "max_num_seqs", "max_num_batched_tokens")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """store: a file in kv/. block_size: tokens per page. memory: bytes for K and V, None = choose.
    enable_prefix_caching: reuse pages of equal prefixes. dtype: format of K and V, which decides
    bits; auto: float32 in numerics mode float32, else bfloat16."""

    store: str = "paged"
    block_size: int = 16
    memory: int | None = None
    enable_prefix_caching: bool = True
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.dtype not in KV_FORMATS:
            raise ConfigError(
                f"kv_cache_dtype must be one of {', '.join(KV_FORMATS)}; got {self.dtype!r}"
            )
        positive(self, "block_size")
        flag(self, "enable_prefix_caching")
        if self.memory is not None:
            positive(self, "memory")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """method: a file in draft/. tree: a file in tree/. num_speculative_tokens: longest draft path.
    node_budget: draft nodes per pass over the whole batch. None = as many as pay (trees that look
    at costs), else what fills the matrix tile.
    learning: what drafters keep from one request for the next; false freezes it as it is.
    options: the drafter's own settings (its Config dataclass checks them)."""

    method: str = "auto"
    model: str | None = None
    tree: str = "goodput"
    num_speculative_tokens: int = 15
    node_budget: int | None = None
    learning: bool = True
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        positive(self, "num_speculative_tokens")
        flag(self, "learning")
        if self.node_budget is not None and self.node_budget < 0:
            raise ConfigError(f"node_budget must be >= 0, got {self.node_budget}")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything an engine is built from.

    Model, revision, quantization, numerics, cache.dtype, backend, isa, device and generation_config
    decide what a request's tokens are, max_model_len where they end, seed which stream one without
    a seed gets, adapters which ones it may name. threads, scheduler, the rest of cache and
    speculative decide how fast, and nothing else.
    """

    model: str
    revision: str | None = None
    numerics: str | None = None  # None = by instruction set and weight format, a static table
    quantization: str | None = None  # int8 | int4: quantise the matrices while they are loaded
    backend: str | None = None  # None = cpu where its extension is built, else torch
    isa: str | None = None  # backend cpu: its instruction set, None = the best here
    device: str = "cpu"
    threads: int | None = None  # None = affinity, cgroup quota, OMP_NUM_THREADS
    max_model_len: int | None = None
    generation_config: str = "auto"  # auto | none
    seed: int | None = None  # for requests that bring none; see sample.noise.request_seed
    adapters: dict[str, str] = field(default_factory=dict)  # name -> PEFT folder, loaded at start
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    speculative: SpeculativeConfig = field(default_factory=SpeculativeConfig)

    def __post_init__(self) -> None:
        if self.numerics is not None:
            one_of(self, "numerics", NUMERICS)
        if self.quantization is not None:
            one_of(self, "quantization", QUANTIZATIONS)
        if self.isa is not None and self.backend not in (None, "cpu"):
            raise ConfigError(
                f"isa {self.isa!r} is for backend cpu, not {self.backend}; leave it out"
            )
        one_of(self, "generation_config", ("auto", "none"))
        for name in ("threads", "max_model_len"):
            if getattr(self, name) is not None:
                positive(self, name)
        if self.seed is not None:
            whole(self, "seed", 0, MAX_SEED)
        for name, folder in self.adapters.items():
            if not isinstance(name, str) or not name or not str(folder):
                raise ConfigError(f"adapters must map names to folders, got {name!r}: {folder!r}")


def positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name} must be a whole number >= 1, got {value!r}")


def whole(config: Any, name: str, low: int, high: int) -> None:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number {low} to {high}, got {value!r}")


def share(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.0 <= value <= 1.0:
            raise ConfigError(f"{name} must be between 0 and 1, got {value!r}")


def flag(config: Any, name: str) -> None:
    if not isinstance(getattr(config, name), bool):
        raise ConfigError(f"{name} must be true or false, got {getattr(config, name)!r}")


def one_of(config: Any, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(config, name)
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def from_options(kind: type[Any], options: dict[str, Any], what: str) -> Any:
    """Build a config dataclass from a mapping; an unknown key is an error that lists the known
    ones."""
    known = [item.name for item in fields(kind)]
    for key in options:
        if key not in known:
            raise ConfigError(
                f"unknown option {key!r} for {what}; known: {', '.join(known) or 'none'}"
            )
    return kind(**options)


def read_speculative_config(options: dict[str, Any]) -> SpeculativeConfig:
    """A SpeculativeConfig from the mapping users write (vLLM's keys): its own fields by name, any
    other key is an option of the drafter, which checks it. A model without a method is a draft
    model; other engines' method names are understood."""
    own = {item.name for item in fields(SpeculativeConfig)} - {"options"}
    options = dict(options)
    if "model" in options:
        options.setdefault("method", "model")
    if isinstance(options.get("method"), str):
        method = options["method"].lower()
        options["method"] = METHODS.get(method, method)
    given = {key: value for key, value in options.items() if key in own}
    rest = {key: value for key, value in options.items() if key not in own}
    return SpeculativeConfig(**given, options=rest)


def read_acceptance(text: str) -> tuple[str, dict[str, Any]]:
    """NAME or NAME:OPTION=VALUE,... as a command line has it; values are JSON, or else words."""
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"--acceptance {text}: {part!r} is not OPTION=VALUE")
        try:
            given[key] = json.loads(value)
        except ValueError:
            given[key] = value
    return name, given
