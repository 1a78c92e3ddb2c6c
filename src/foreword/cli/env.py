"""`foreword env`: what a bug report should say about the machine and the installed versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from foreword import machine
from foreword.cli.numbers import size_text
from foreword.cli.options import Json
from foreword.cli.show import facts, print_json
from foreword.version import __version__

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "gguf", "huggingface_hub", "jinja2")
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "FOREWORD_CACHE", "HF_HOME", "HF_HUB_OFFLINE")


def env(json: Json = False) -> None:
    """Versions, machine type, threads, memory, backends, torch's settings."""
    content = describe()
    if json:
        print_json(content)
        return
    available = content["memory_available_bytes"]
    content["memory_available_bytes"] = None if available is None else size_text(available)
    facts(content)


def describe() -> dict[str, Any]:
    from foreword.build import NUMERICS_VERSION, names
    from foreword.kernels import _defaults
    from foreword.kernels.guard import host_settings

    torch_settings = host_settings()
    return {
        "foreword": __version__,
        "numerics_version": NUMERICS_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": machine.machine_type(),
        "threads_usable": machine.num_threads(),
        "threads_of_machine": os.cpu_count(),
        "memory_available_bytes": machine.available_memory(),
        "cache": str(machine.cache_dir()),
        "backends": names("kernels"),
        "default": _defaults.describe(),
        "drafters": names("draft"),
        "trees": names("tree"),
        "kv_stores": names("kv"),
        "torch": torch_settings,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
