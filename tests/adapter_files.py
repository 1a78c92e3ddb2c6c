"""LoRA adapters for tests: in memory, as PEFT folders written by hand, and merged into weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from foreword.kernels.ops import LowRank
from foreword.model.config import ModelConfig
from foreword.model.weights.adapter import MODULES, PREFIX
from foreword.model.weights.check import expected_shapes

ALL = tuple(MODULES)  # query, key, ...
FORMATS = (torch.float32, torch.bfloat16, torch.float16)


def factors(
    config: ModelConfig,
    seed: int = 0,
    ranks: Mapping[str, int] | int = 4,
    scale: float = 0.5,
    size: float = 0.3,
    formats: tuple[torch.dtype, ...] = FORMATS,
) -> list[dict[str, LowRank]]:
    """Random adapters of every layer; ranks: by projection, or one for all. Formats take turns."""
    random = torch.Generator("cpu").manual_seed(seed)
    shapes, layers = expected_shapes(config), []
    by_name = dict.fromkeys(ALL, ranks) if isinstance(ranks, int) else ranks
    turn = 0
    for layer in range(config.num_layers):
        made = {}
        for name, rank in by_name.items():
            out, into = shapes[f"model.layers.{layer}.{MODULES[name]}.weight"]
            down = torch.randn(rank, into, generator=random) * size
            up = torch.randn(out, rank, generator=random) * size
            first, second = formats[turn % len(formats)], formats[(turn + 1) % len(formats)]
            made[name] = LowRank(down.to(first), up.to(second), scale)
            turn += 1
        layers.append(made)
    return layers


def merged(
    tensors: Mapping[str, torch.Tensor], layers: list[dict[str, LowRank]]
) -> dict[str, torch.Tensor]:
    """W + scale * B A in float64, other tensors as they are."""
    made = dict(tensors)
    for number, layer in enumerate(layers):
        for name, part in layer.items():
            key = f"model.layers.{number}.{MODULES[name]}.weight"
            delta = part.scale * (part.up.double() @ part.down.double())
            made[key] = made[key].double() + delta
    return made


def folder_of(
    path: Path, layers: list[dict[str, LowRank]], alpha: float | None = None, **config: Any
) -> Path:
    """A PEFT folder of these layers. The scale is that of the first part, all ranks being equal."""
    path.mkdir(parents=True, exist_ok=True)
    parts = [part for layer in layers for part in layer.values()]
    rank = parts[0].down.shape[0]
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": parts[0].scale * rank if alpha is None else alpha,
        "target_modules": sorted(MODULES[name].rpartition(".")[2] for name in layers[0]),
        "bias": "none",
        "lora_dropout": 0.05,
        "inference_mode": True,
        **config,
    }
    (path / "adapter_config.json").write_text(json.dumps(content), encoding="utf-8")
    tensors = {}
    for number, layer in enumerate(layers):
        for name, part in layer.items():
            start = f"{PREFIX}model.layers.{number}.{MODULES[name]}"
            tensors[f"{start}.lora_A.weight"] = part.down.contiguous()
            tensors[f"{start}.lora_B.weight"] = part.up.contiguous()
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    return path
