"""Weight files for tests: GGUF from a tiny folder, changed folders, raw safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """model.layers.0.mlp.up_proj.weight -> blk.0.ffn_up.weight"""
    stem, _, last = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, inner = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[inner]}.{last}"
    return f"{NAMES[stem]}.{last}"


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row order of q and k in GGUF files of architecture llama, written as an explicit gather."""
    half = len(rows) // heads // 2
    order = [
        2 * half * head + part * half + i
        for head in range(heads)
        for i in range(half)
        for part in (0, 1)
    ]
    return rows[order]


Tensor = tuple[np.ndarray, "gguf.GGMLQuantizationType | None"]


def gguf_tensors(folder: Path) -> dict[str, Tensor]:
    """A float32 folder's tensors under GGUF names and in GGUF row order; type None = plain."""
    config = json.loads((folder / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors: dict[str, Tensor] = {}
    for name, array in load_file(folder / "model.safetensors").items():
        count = heads.get(name.split(".")[-2])
        if count and config["model_type"] in ("llama", "mistral"):
            array = interleaved(array, count)
        tensors[gguf_name(name)] = (array, None)
    return tensors


def gguf_fields(folder: Path) -> dict[str, Any]:
    """The key-value fields of a tiny folder as a GGUF file holds them."""
    config = json.loads((folder / "config.json").read_text())
    family = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    values = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": config["rope_theta"],
    }
    return {"general.architecture": family} | {f"{family}.{k}": v for k, v in values.items()}


def write_gguf(path: Path, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Through gguf-py's own writer. Whole numbers are uint32, others float32."""
    writer = gguf.GGUFWriter(path, str(fields["general.architecture"]))
    for name, value in fields.items():
        if name != "general.architecture":
            _add(writer, name, value)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if name.startswith("split.") and name != "split.tensors.count":
        writer.add_uint16(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def tiny_gguf(path: Path, folder: Path, **changes: Any) -> Path:
    """A tiny folder as one F32 file; `changes`: fields (dots as __) to add, None removes."""
    fields = gguf_fields(folder)
    for name, value in changes.items():
        key = name.replace("__", ".")
        fields.pop(key, None)
        if value is not None:
            fields[key] = value
    return write_gguf(path, fields, gguf_tensors(folder))


def copy_folder(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a Hugging Face folder with `change` applied to its config.json."""
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    change(config)
    (target / "config.json").write_text(json.dumps(config))
    return target


def raw_safetensors(path: Path, header: Any, data: bytes) -> Path:
    """Bytes exactly as asked; `header` may be bytes or anything JSON can write."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return path
