"""Option names of other engines: what they are called here, or why they are not here.

One table each way. Names are without leading dashes; underscores count as dashes everywhere.
"""

from __future__ import annotations

from typing import Any

import typer

# Typer may bring its own copy of click; the base of its BadParameter is the right UsageError.
UsageError: Any = typer.BadParameter.__bases__[0]

_SAME = {
    "drafter": ("speculative-algorithm", "spec-type", "speculative-mode", "decoding-type"),
    "draft-model": (
        "model-draft",
        "speculative-draft-model-path",
        "speculative-model",
        "speculative-model-dir",
        "assistant-model",
    ),
    "num-speculative-tokens": (
        "speculative-num-draft-tokens",
        "max-draft-len",
        "draft-max",
        "num-assistant-tokens",
        "speculate",
        "speculate-k",
    ),
    "prompt-lookup-max": ("spec-ngram-size-n", "max-ngram-size", "max-matching-ngram-size"),
    "confidence-threshold": ("assistant-confidence-threshold", "draft-p-min"),
    "numerics": ("dtype",),
    "max-model-len": ("context-length", "ctx-size"),
    "max-tokens": ("max-new-tokens", "n-predict"),
    "prefix-caching": ("enable-prefix-caching",),
    "no-prefix-caching": ("no-enable-prefix-caching", "disable-radix-cache"),
    "seed": ("sampling-seed", "random-seed"),
    "stop-token-id": ("stop-token-ids",),
    "temperature": ("temp",),
    "repetition-penalty": ("repeat-penalty",),
    "typical-p": ("typical",),
    "mirostat-tau": ("mirostat-ent",),
    "mirostat-eta": ("mirostat-lr",),
    "beam-width": ("num-beams",),
    "json-schema": ("guided-json",),
    "regex": ("guided-regex",),
    "choice": ("guided-choice",),
    "grammar": ("guided-grammar",),
}
ALIASES = {alias: name for name, aliases in _SAME.items() for alias in aliases}

SERVER = (
    "host",
    "port",
    "api-key",
    "served-model-name",
    "tool-call-parser",
    "reasoning-parser",
)
_GROUPS = {
    "one process on one device; leave it out": (
        "tensor-parallel-size",
        "tp",
        "pipeline-parallel-size",
        "data-parallel-size",
        "n-gpu-layers",
        "gpu-memory-utilization",
    ),
    "weights run as stored, in the --numerics asked for; leave it out": ("load-format",),
    "set the shape of the tree with --tree and --node-budget": (
        "speculative-eagle-topk",
        "speculative-num-steps",
    ),
    "only in Python, as a field of SamplingParams": ("logits-processors",),
    "an adapter is a PEFT folder: --lora-modules NAME=FOLDER, and --adapter NAME": (
        "lora",
        "lora-scaled",
        "lora-paths",
    ),
    "adapters have the rank of their files, and as many as fit are loaded; leave it out": (
        "max-lora-rank",
        "max-loras",
        "max-loras-per-batch",
    ),
    "say how many beams: --beam-width": ("use-beam-search",),
    "model code is never run; leave it out": ("trust-remote-code",),
    "the model's own template is used; --raw leaves it out": ("chat-template",),
}
UNSUPPORTED = {name: reason for reason, names in _GROUPS.items() for name in names}


def plain(name: str) -> str:
    """For commands with options of their own: underscores as dashes, nothing else."""
    return name.replace("_", "-")


def canonical(name: str) -> str:
    """The name Foreword uses. UsageError for a known option that it does not have."""
    name = plain(name)
    name = ALIASES.get(name, name)
    if name in UNSUPPORTED:
        raise UsageError(f"option --{name} is not supported yet: {UNSUPPORTED[name]}")
    if name in SERVER:
        raise UsageError(f"option --{name} belongs to foreword serve; leave it out")
    return name


def of_server(name: str) -> str:
    """As `canonical`, for the command that has the server's options."""
    return plain(name) if plain(name) in SERVER else canonical(name)
