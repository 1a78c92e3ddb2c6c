"""Quantised checkpoints for tests: folders in the layouts of GPTQ, AWQ and compressed-tensors, and
GGUF files, all made from a tiny folder. Packing is written value by value, after the formats'
descriptions, so that it shares nothing with the package's unpacking.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from weight_files import gguf_fields, gguf_tensors, write_gguf


class Matrix(NamedTuple):
    """weight = scale * (q - zero), per group of columns."""

    q: np.ndarray  # unsigned [out, in]
    scale: np.ndarray  # float16 [out, groups]
    zero: np.ndarray  # [out, groups]
    bits: int

    def floats(self) -> np.ndarray:
        """float32 [out, in]: exact, the scale has eleven bits and the integers at most nine."""
        group = self.q.shape[1] // self.scale.shape[1]
        scale, zero = (np.repeat(part.astype(np.float64), group, 1) for part in self[1:3])
        return (scale * (self.q - zero)).astype(np.float32)


def random_matrix(
    shape: tuple[int, int], bits: int, group: int, symmetric: bool, seed: int
) -> Matrix:
    random = np.random.default_rng(seed)
    rows, columns = shape
    groups = 1 if group == -1 else columns // group
    zeros = np.full((rows, groups), 1 << (bits - 1))
    if not symmetric:
        zeros = random.integers(1, 1 << bits, (rows, groups))
    scale = (random.uniform(0.5, 1.5, (rows, groups)) * 0.6 / (1 << bits)).astype(np.float16)
    return Matrix(random.integers(0, 1 << bits, shape), scale, zeros, bits)


def packed(values: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Along the last axis: int32 words, the lowest bits first; `order`: which of a word's values
    comes where."""
    count = 32 // bits
    order = order or list(range(count))
    words = np.zeros((len(values), values.shape[1] // count), np.uint64)
    for word in range(words.shape[1]):
        for place in range(count):
            value = values[:, word * count + order[place]].astype(np.uint64)
            words[:, word] |= value << np.uint64(place * bits)
    return words.astype(np.uint32).view(np.int32)


def gptq(stem: str, matrix: Matrix, v2: bool = False) -> dict[str, np.ndarray]:
    stored = matrix.zero if v2 else matrix.zero - 1
    groups = matrix.scale.shape[1]
    columns = matrix.q.shape[1]
    parts = {
        "qweight": packed(matrix.q, matrix.bits).T,
        "qzeros": packed(stored.T, matrix.bits),
        "scales": matrix.scale.T,
        "g_idx": (np.arange(columns) // (columns // groups)).astype(np.int32),
    }
    return {f"{stem}.{name}": np.ascontiguousarray(part) for name, part in parts.items()}


def awq(stem: str, matrix: Matrix) -> dict[str, np.ndarray]:
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    parts = {
        "qweight": packed(matrix.q.T, 4, order),
        "qzeros": packed(matrix.zero.T, 4, order),
        "scales": matrix.scale.T,
    }
    return {f"{stem}.{name}": np.ascontiguousarray(part) for name, part in parts.items()}


def pack_quantized(stem: str, matrix: Matrix) -> dict[str, np.ndarray]:
    parts = {
        "weight_packed": packed(matrix.q, matrix.bits),
        "weight_scale": matrix.scale,
        "weight_shape": np.array(matrix.q.shape, np.int64),
    }
    if (matrix.zero != 1 << (matrix.bits - 1)).any():
        parts["weight_zero_point"] = packed(matrix.zero.T, matrix.bits).T
    return {f"{stem}.{name}": np.ascontiguousarray(part) for name, part in parts.items()}


def int_quantized(stem: str, matrix: Matrix) -> dict[str, np.ndarray]:
    middle = 1 << (matrix.bits - 1)
    parts = {
        "weight": (matrix.q - middle).astype(np.int8),
        "weight_scale": matrix.scale,
    }
    if (matrix.zero != middle).any():
        parts["weight_zero_point"] = (matrix.zero - middle).astype(np.int8)
    return {f"{stem}.{name}": part for name, part in parts.items()}


def compressed_tensors_config(
    bits: int, group: int, symmetric: bool, layout: str = "pack-quantized"
) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "channel" if group == -1 else "group",
        "group_size": None if group == -1 else group,
        "dynamic": False,
        "actorder": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


class Folders(NamedTuple):
    quantised: Path
    floats: Path  # the same model, its matrices written as float32
    matrices: dict[str, Matrix]  # by the name of the weight


def quantised_folder(
    target: Path,
    source: Path,
    write: Callable[[str, Matrix], dict[str, np.ndarray]],
    config: dict[str, Any],
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
) -> Folders:
    """Copies of `source`, its products replaced by random integers: quantised, and as floats."""
    held = load_file(source / "model.safetensors")
    small, plain, matrices = {}, {}, {}
    for number, (name, array) in enumerate(sorted(held.items())):
        if "_proj.weight" not in name:
            small[name] = plain[name] = array
            continue
        matrix = random_matrix(array.shape, bits, group, symmetric, number)
        matrices[name], plain[name] = matrix, matrix.floats()
        small |= write(name.removesuffix(".weight"), matrix)
    for kind, tensors in (("quantised", small), ("floats", plain)):
        folder = target / kind
        shutil.copytree(source, folder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        if kind == "quantised":
            change_config(folder, quantization_config=config)
    return Folders(target / "quantised", target / "floats", matrices)


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def quantised_gguf(path: Path, source: Path, kind: str, **other: str) -> Path:
    """A tiny folder as a GGUF file: every matrix of type `kind`, or of the type given by a word in
    its GGUF name (attn_v="Q8_0"). Types that gguf-py cannot write hold tame random blocks."""
    tensors: dict[str, Any] = {}
    for number, (name, (array, _)) in enumerate(gguf_tensors(source).items()):
        if array.ndim == 1:
            tensors[name] = (array, None)
            continue
        chosen = next((value for word, value in other.items() if word in name), kind)
        if chosen == "F32":
            tensors[name] = (array, None)
            continue
        form = gguf.GGMLQuantizationType[chosen]
        if chosen.endswith("_K"):
            tensors[name] = (tame_blocks(chosen, array.shape, number), form)
        else:
            tensors[name] = (gguf.quantize(array, form), form)
    return write_gguf(path, gguf_fields(source), tensors)


_HALVES = {  # where a block's float16 numbers lie, and how large they may be
    "Q2_K": {80: 0.01, 82: 0.01},
    "Q3_K": {108: 0.003},
    "Q4_K": {0: 0.0006, 2: 0.004},
    "Q5_K": {0: 0.0003, 2: 0.004},
    "Q6_K": {208: 0.0002},
}


def tame_blocks(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random blocks whose values look like weights: about zero, below one."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (shape[0], shape[1] // values, size), dtype=np.uint8)
    for at, largest in _HALVES[kind].items():
        halves = (random.uniform(0.5, 1.0, (*blocks.shape[:2], 1)) * largest).astype(np.float16)
        blocks[:, :, at : at + 2] = halves.view(np.uint8)
    return blocks.reshape(shape[0], -1)
