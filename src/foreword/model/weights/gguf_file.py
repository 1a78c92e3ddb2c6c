"""A GGUF file, whole or in parts -> Checkpoint with Hugging Face names and layouts.

Quantised matrices keep their integers (`gguf_grouped.py`), or are dequantised to float32 by
gguf-py's own functions where floats are asked for. Files of architecture llama hold the rows of q
and k in another order (pairs interleaved); they are put back here.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, dequantize

from foreword.errors import WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights import gguf_config
from foreword.model.weights.check import READABLE, check
from foreword.model.weights.checkpoint import Checkpoint, StoredTensor
from foreword.model.weights.gguf_grouped import TYPES, grouped, in_parallel
from foreword.model.weights.gguf_header import GgufFile, GgufTensor, open_gguf
from foreword.model.weights.grouped import GroupedInt

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FACTORS = "rope_freqs.weight"  # not a weight: per-frequency divisors of rope
_PLAIN = {  # numpy has no bfloat16: its bits travel as int16
    "F32": ("<f4", torch.float32),
    "F16": ("<f2", torch.float16),
    "BF16": ("<i2", torch.bfloat16),
}


def part_names(name: str) -> list[str]:
    """Names of all files of a model, in order, given the name of any one of them."""
    match = _PART.fullmatch(name)
    if match is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]


def part_paths(path: Path) -> list[Path]:
    """All files of a model, given any of its parts. Raises WeightsError naming an absent one."""
    if _PART.fullmatch(path.name) is None:
        return [path]
    parts = [path.with_name(name) for name in part_names(path.name)]
    for part in parts:
        if not part.is_file():
            raise WeightsError(
                f"{part}: this part of the model is absent; download all {len(parts)}"
            )
    return parts


def open_gguf_model(path: Path) -> Checkpoint:
    """Open and check. Raises WeightsError or UnsupportedModel naming file, tensor or field."""
    parts = [open_gguf(part) for part in part_paths(path)]
    _check_parts(parts)
    tensors: dict[str, tuple[GgufFile, GgufTensor]] = {}
    for part in parts:
        for tensor in part.tensors:
            if tensor.name in tensors:
                raise WeightsError(f"{part.path}: tensor {tensor.name!r} is in two parts")
            tensors[tensor.name] = (part, tensor)
    metadata = parts[0].metadata
    factors = _rope_factors(*tensors.pop(_FACTORS)) if _FACTORS in tensors else None
    shapes = {name: tensor.shape for name, (_, tensor) in tensors.items()}
    config = gguf_config.model_config(metadata, shapes, factors, str(path))
    stored = {
        hugging_face_name(name): _stored(part, tensor, _interleaved_heads(name, config))
        for name, (part, tensor) in tensors.items()
    }
    checkpoint = Checkpoint(
        path=path,
        files=tuple(part.path for part in parts),
        config=config,
        generation={},
        eos_ids=gguf_config.end_tokens(metadata),
        tensors=stored,
        metadata=metadata,
    )
    check(checkpoint)
    return checkpoint


def hugging_face_name(name: str) -> str:
    """The name in a Hugging Face checkpoint; a name that has none stays as it is."""
    words = name.split(".")
    if len(words) == 2 and words[0] in _TOP:
        return f"{_TOP[words[0]]}.{words[1]}"
    if len(words) == 4 and words[0] == "blk" and words[2] in _LAYER:
        return f"model.layers.{words[1]}.{_LAYER[words[2]]}.{words[3]}"
    return name


def _interleaved_heads(name: str, config: ModelConfig) -> int:
    """Heads whose rows are interleaved in this tensor; 0 = rows are in Hugging Face order."""
    if config.architecture != "llama":
        return 0
    if ".attn_q." in name:
        return config.num_heads
    return config.num_kv_heads if ".attn_k." in name else 0


def _rope_factors(part: GgufFile, tensor: GgufTensor) -> tuple[float, ...]:
    values = _read(part, tensor, 0).flatten() if tensor.kind == "F32" else torch.zeros(1)
    if not bool(torch.isfinite(values).all() and (values > 0).all()):
        raise WeightsError(f"{part.path}: tensor {tensor.name!r} must hold float32 factors > 0")
    return tuple(values.tolist())


def _check_parts(parts: list[GgufFile]) -> None:
    """`split.*` fields and file names must tell the same story."""
    for number, part in enumerate(parts):
        declared = part.metadata.get("split.count", len(parts)) or 1
        if declared != len(parts) or part.metadata.get("split.no", number) != number:
            raise WeightsError(
                f"{part.path}: it says it is part {part.metadata.get('split.no', 0) + 1} of"
                f" {declared}; name the parts NAME-00001-of-{declared:05d}.gguf and so on"
            )
    total = parts[0].metadata.get("split.tensors.count")
    found = sum(len(part.tensors) for part in parts)
    if total is not None and total != found:
        raise WeightsError(f"{parts[0].path}: the parts hold {found} of {total} tensors")


def _stored(part: GgufFile, tensor: GgufTensor, heads: int) -> StoredTensor:
    matrix = tensor.kind in TYPES and len(tensor.shape) == 2
    return StoredTensor(
        shape=tensor.shape,
        dtype=_dtype(tensor),
        kind=tensor.kind,
        num_bytes=tensor.num_bytes,
        file=part.path,
        read=functools.partial(_read, part, tensor, heads),
        read_grouped=functools.partial(_read_grouped, part, tensor, heads) if matrix else None,
        group=TYPES[tensor.kind].group if matrix else 0,
    )


def _dtype(tensor: GgufTensor) -> torch.dtype:
    return _PLAIN[tensor.kind][1] if tensor.kind in _PLAIN else torch.float32


def _read(part: GgufFile, tensor: GgufTensor, heads: int) -> torch.Tensor:
    """An own copy; `heads` > 0: put the rows of each head back from interleaved to half-split."""
    assert tensor.kind in READABLE, tensor.kind
    result = torch.empty(tensor.shape, dtype=_dtype(tensor))
    target = (result.view(torch.int16) if result.dtype == torch.bfloat16 else result).numpy()
    if heads:
        rows, rest = tensor.shape[0] // heads, tensor.shape[1:]
        array = _array(part, tensor, slice(None)).reshape(heads, rows // 2, 2, *rest)
        target.reshape(heads, 2, rows // 2, *rest)[...] = array.swapaxes(1, 2)
    elif tensor.kind in _PLAIN:
        target[...] = _array(part, tensor, slice(None))
    else:  # some rows at a time: a whole matrix of floats twice is too much memory
        in_parallel(
            lambda rows: target.__setitem__(rows, _array(part, tensor, rows)), tensor.shape[0]
        )
    part.release(tensor)
    return result


def _read_grouped(part: GgufFile, tensor: GgufTensor, heads: int) -> GroupedInt:
    """The stored integers and scales, rows in the order `_read` puts them."""
    raw = np.frombuffer(part.data, np.uint8, tensor.num_bytes, tensor.offset)
    rows, columns = tensor.shape
    if heads:
        apart = raw.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2)
        raw = np.ascontiguousarray(apart).reshape(-1)
    found = grouped(raw, tensor.kind, (rows, columns))
    part.release(tensor)
    return found


def _array(part: GgufFile, tensor: GgufTensor, rows: slice) -> np.ndarray[Any, Any]:
    """The values of some rows: a view of the file for plain kinds, else dequantised float32."""
    if tensor.kind in _PLAIN:
        plain = np.dtype(_PLAIN[tensor.kind][0])
        count = tensor.num_bytes // plain.itemsize
        return np.frombuffer(part.data, plain, count, tensor.offset).reshape(tensor.shape)[rows]
    raw = np.frombuffer(part.data, np.uint8, tensor.num_bytes, tensor.offset)
    values: np.ndarray[Any, Any] = dequantize(
        raw.reshape(*tensor.shape[:-1], -1)[rows], GGMLQuantizationType[tensor.kind]
    )
    return values.reshape(-1, *tensor.shape[1:])
