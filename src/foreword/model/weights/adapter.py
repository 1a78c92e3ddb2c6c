"""A PEFT folder (adapter_config.json beside adapter_model.safetensors) -> the layers of an adapter.

Everything is checked before it is used: every module that the config names has both halves in the
shapes of the model, nothing else is in the file, and every number is finite.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from foreword.errors import WeightsError
from foreword.kernels.ops import AdapterLayer, LowRank
from foreword.model.config import ModelConfig
from foreword.model.weights.adapter_config import AdapterConfig, read_adapter_config
from foreword.model.weights.check import expected_shapes
from foreword.model.weights.checkpoint import StoredTensor
from foreword.model.weights.fingerprint import file_sha256
from foreword.model.weights.folder import stored_tensors

WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
MODULES = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
_HALVES = (".lora_A.weight", ".lora_B.weight")
_KINDS = ("F32", "F16", "BF16")
_OTHERS = {  # parts of a name that say what else an adapter may hold
    "lora_magnitude_vector": "DoRA is not supported",
    "lora_embedding": "adapters of embeddings are not supported",
    "modules_to_save": "whole trained modules are not supported",
    "embed_tokens": "trained embeddings are not supported",
    "lm_head": "a trained head is not supported",
    ".bias": "biases of an adapter are not supported",
}


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA adapter, read. sha256 (hex): of its weights and of their scales, which are all that
    it adds is a function of."""

    path: Path
    sha256: str
    layers: tuple[AdapterLayer, ...]
    num_bytes: int  # in the file

    @property
    def rank(self) -> int:
        """The largest."""
        return max(part.down.shape[0] for layer in self.layers for part in layer.values())


@dataclass(frozen=True, slots=True)
class _Module:
    """One changed projection: where it is, and the two tensors as they must be."""

    layer: int
    projection: str
    name: str  # model.layers.0.self_attn.q_proj
    shapes: tuple[tuple[int, int], tuple[int, int]]  # of A and B
    scale: float


def open_adapter(folder: Path, model: ModelConfig) -> Adapter:
    """Read an adapter for a model of this shape. Raises WeightsError naming the file and the tensor
    or field at fault."""
    config = read_adapter_config(folder)
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise WeightsError(
            f"{folder}: has no {WEIGHTS_FILE}; adapters in other formats must be converted first"
        )
    modules = _modules(config, model)
    stored = stored_tensors(file)
    _check(file, stored, modules)
    layers: list[dict[str, LowRank]] = [{} for _ in range(model.num_layers)]
    digest = hashlib.sha256(bytes.fromhex(file_sha256(file)))
    for module in modules:
        down, up = (_read(file, stored, PREFIX + module.name + half) for half in _HALVES)
        layers[module.layer][module.projection] = LowRank(down, up, module.scale)
        digest.update(json.dumps([module.name, module.scale.hex()]).encode())
    num_bytes = sum(tensor.num_bytes for tensor in stored.values())
    return Adapter(folder, digest.hexdigest(), tuple(layers), num_bytes)


def _modules(config: AdapterConfig, model: ModelConfig) -> list[_Module]:
    """The projections the config names, layer by layer."""
    shapes, found = expected_shapes(model), []
    for layer in range(model.num_layers):
        for projection, path in MODULES.items():
            name = f"model.layers.{layer}.{path}"
            if not config.changes(name):
                continue
            out, into = shapes[f"{name}.weight"]
            rank = config.rank_of(name)
            scale = config.scale_of(name)
            found.append(_Module(layer, projection, name, ((rank, into), (out, rank)), scale))
    if not found:
        raise WeightsError(f"{config.where}: target_modules fit no linear layer of this model")
    return found


def _check(file: Path, stored: dict[str, StoredTensor], modules: list[_Module]) -> None:
    expected = {
        PREFIX + module.name + half: shape
        for module in modules
        for half, shape in zip(_HALVES, module.shapes, strict=True)
    }
    for name in sorted(stored):
        if name not in expected:
            reasons = [reason for part, reason in _OTHERS.items() if part in name]
            more = reasons[0] if reasons else "it is not among the target_modules of this model"
            raise WeightsError(f"{file}: tensor {name!r} cannot be used: {more}")
    for name, shape in expected.items():
        if name not in stored:
            raise WeightsError(
                f"{file}: tensor {name!r} is missing; {file.parent.name} is not complete"
            )
        tensor = stored[name]
        if tensor.kind not in _KINDS:
            raise WeightsError(
                f"{file}: tensor {name!r} has type {tensor.kind}; an adapter's are of"
                f" {', '.join(_KINDS)}"
            )
        if tensor.shape != shape:
            raise WeightsError(
                f"{file}: tensor {name!r} has shape {list(tensor.shape)}; this model and the"
                f" config's rank want {list(shape)}"
            )


def _read(file: Path, stored: dict[str, StoredTensor], name: str) -> torch.Tensor:
    tensor = stored[name].read()
    if not bool(torch.isfinite(tensor).all()):
        raise WeightsError(f"{file}: tensor {name!r} holds NaN or infinity; the adapter is damaged")
    return tensor
