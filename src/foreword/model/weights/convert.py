"""Write a checkpoint as a Hugging Face folder: config, generation config, safetensors, tokenizer.

The tokenizer files come from a function the caller hands in, because this room knows no text.
config.json is written last, so that a folder left half-written cannot be opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from foreword.errors import ConfigError, UnsupportedModel, WeightsError
from foreword.model.config import ModelConfig, RopeConfig
from foreword.model.rope import inverse_frequencies
from foreword.model.weights.check import expected_shapes
from foreword.model.weights.checkpoint import Checkpoint
from foreword.model.weights.folder import INDEX
from foreword.model.weights.hf_config import ARCHITECTURES

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHARD_BYTES = 4_000_000_000


def convert_to_hf(
    checkpoint: Checkpoint,
    folder: Path,
    save_tokenizer: Callable[[Path], None],
    dtype: str = "float32",
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write `checkpoint` to a new or empty `folder`; `save_tokenizer(folder)` adds its files.

    `dtype`: float32, bfloat16 or float16. Raises ConfigError for a bad dtype or a folder in use,
    UnsupportedModel when the rope cannot be written, WeightsError when a value does not fit dtype.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPES)}; got {dtype!r}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not an empty folder; choose another")
    config = {**_config_fields(checkpoint.config), **_token_fields(checkpoint)}
    config["torch_dtype"] = dtype
    folder.mkdir(parents=True, exist_ok=True)
    _write_tensors(checkpoint, folder, DTYPES[dtype], shard_bytes)
    save_tokenizer(folder)
    sampling: dict[str, Any] = dict(checkpoint.generation)
    if sampling:
        sampling["do_sample"] = True
    _write_json(folder / "generation_config.json", {**_token_fields(checkpoint), **sampling})
    _write_json(folder / "config.json", config)


def _write_tensors(
    checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, shard_bytes: int
) -> None:
    shards = list(_shards(checkpoint.config, dtype.itemsize, shard_bytes))
    places: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = "model.safetensors"
        if len(shards) > 1:
            file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: _cast(checkpoint, name, dtype) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(names, file))
    if len(shards) > 1:
        sizes = [shape_bytes(shape, dtype) for shape in expected_shapes(checkpoint.config).values()]
        _write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes)}, "weight_map": places})


def _shards(config: ModelConfig, item_bytes: int, limit: int) -> Iterator[list[str]]:
    """Names in file order, cut before a shard would exceed `limit` bytes."""
    names: list[str] = []
    held = 0
    for name, shape in expected_shapes(config).items():
        size = int(np.prod(shape)) * item_bytes
        if names and held + size > limit:
            yield names
            names, held = [], 0
        names.append(name)
        held += size
    yield names


def shape_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _cast(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> torch.Tensor:
    tensor = checkpoint.tensor(name)
    result = tensor.to(dtype)
    if not torch.equal(result.isfinite(), tensor.isfinite()):
        raise WeightsError(
            f"{checkpoint.path}: tensor {name!r} exceeds the range of {dtype}; use bfloat16"
        )
    return result


def _config_fields(config: ModelConfig) -> dict[str, Any]:
    family = config.architecture
    windows = set(config.windows) - {None}
    if family == "llama" and windows:
        family = "mistral"  # a GGUF file calls Mistral llama; only that class has windows
    fields: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tied_head,
        "rope_theta": config.rope.theta,
        "rope_scaling": _rope_fields(config),
    }
    if family in ("llama", "qwen3"):
        if config.qkv_bias != config.output_bias:
            raise UnsupportedModel(f"biases on some of q, k, v, o cannot be written as {family}")
        fields["attention_bias"] = config.qkv_bias
    if family == "llama":
        fields["mlp_bias"] = config.mlp_bias
    if family == "mistral":
        fields["sliding_window"] = config.windows[0]
    if family in ("qwen2", "qwen3"):
        kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
        fields |= {
            "use_sliding_window": bool(windows),
            "sliding_window": next(iter(windows), None),
            "layer_types": kinds,
        }
    return fields


def _rope_fields(config: ModelConfig) -> dict[str, Any] | None:
    """The oldest spelling that every reader understands; None for plain rope."""
    rope = config.rope
    if rope.factors is not None:
        rope = _as_llama3(config)
    if rope.kind == "default":
        return None
    names = {
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_position,
        "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "beta_fast": rope.beta_fast,
        "beta_slow": rope.beta_slow,
        "attention_factor": rope.attention_factor,
        "mscale": rope.mscale,
        "mscale_all_dim": rope.mscale_all_dim,
        "truncate": None if rope.truncate else False,
    }
    return {"rope_type": rope.kind} | {
        name: value for name, value in names.items() if value is not None
    }


def _as_llama3(config: ModelConfig) -> RopeConfig:
    """The llama3 settings behind these per-frequency divisors, or UnsupportedModel."""
    rope = config.rope
    assert rope.factors is not None
    found = RopeConfig(  # the settings every Llama 3.1 and 3.2 was released with
        rope.theta,
        "llama3",
        factor=round(max(rope.factors), 3),
        original_max_position=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    plain = RopeConfig(rope.theta)
    wanted = inverse_frequencies(found, config.head_dim, config.max_position)[0]
    base = inverse_frequencies(plain, config.head_dim, config.max_position)[0]
    if rope.kind != "default" or not np.allclose(base / wanted, rope.factors, rtol=1e-4, atol=0.0):
        raise UnsupportedModel(
            "tensor 'rope_freqs.weight' holds factors of no known rope kind;"
            " they cannot be written to config.json"
        )
    return found


def _token_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    eos = sorted(checkpoint.eos_ids)
    names = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
    ids = {key: checkpoint.metadata.get(f"tokenizer.ggml.{name}") for key, name in names.items()}
    ids["eos_token_id"] = eos[0] if len(eos) == 1 else eos or None
    return {key: value for key, value in ids.items() if value is not None}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
