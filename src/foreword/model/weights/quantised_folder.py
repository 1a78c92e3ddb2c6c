"""A Hugging Face folder whose config names a quantisation: its parts become whole matrices.

`gptq.py`, `awq.py` and `compressed_tensors.py` know one layout each; other methods are refused by
name in `hf_config.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from foreword.errors import WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights import awq, compressed_tensors, gptq
from foreword.model.weights.check import expected_shapes
from foreword.model.weights.checkpoint import StoredTensor
from foreword.model.weights.fields import Fields
from foreword.model.weights.grouped import GroupedInt


def whole_matrices(
    tensors: Mapping[str, StoredTensor], quantization: Mapping[str, Any], where: str
) -> dict[str, StoredTensor]:
    """Tensors as the model names them. Raises WeightsError or UnsupportedModel naming the part."""
    method: Any = {"gptq": gptq, "awq": awq, "compressed-tensors": compressed_tensors}[
        quantization["quant_method"]
    ]
    how = method.scheme(Fields(quantization, f"{where}: quantization_config"))
    names, needed = method.parts(how)
    main = names[0]
    rest, apart = dict(tensors), dict[str, dict[str, StoredTensor]]()
    for name in tensors:
        stem, _, last = name.rpartition(".")
        if last in names and f"{stem}.{main}" in tensors and _is_part(tensors, stem, main):
            apart.setdefault(stem, {})[last] = rest.pop(name)
    for stem, parts in apart.items():
        for last in names[:needed]:
            if last not in parts:
                raise WeightsError(
                    f"{parts[main].file}: tensor {stem + '.' + last!r} is missing beside"
                    f" {main}; download the model again"
                )
        shape = method.matrix(stem, parts, how)
        grouped = functools.partial(method.read, stem, parts, how)
        scale = parts.get("scales") or parts["weight_scale"]
        rest[f"{stem}.weight"] = StoredTensor(
            shape=shape,
            dtype=torch.float32,
            kind=f"INT{how.bits}",
            num_bytes=sum(part.num_bytes for part in parts.values()),
            file=parts[main].file,
            read=functools.partial(_dequantised, grouped),
            read_grouped=grouped,
            group=shape[1] // (math.prod(scale.shape) // shape[0]),
        )
    return rest


def _is_part(tensors: Mapping[str, StoredTensor], stem: str, main: str) -> bool:
    """A `weight` alone, or one that is not of integers, is a tensor as always."""
    return main != "weight" or tensors[f"{stem}.weight"].kind == "I8"


def _dequantised(read: Any) -> torch.Tensor:
    weight: GroupedInt = read()
    return weight.dequantize()


def without_zero_biases(
    tensors: Mapping[str, StoredTensor], config: ModelConfig
) -> dict[str, StoredTensor]:
    """Some exporters write a bias of zeros for every product; those the model lacks are dropped."""
    expected = expected_shapes(config)
    return {
        name: stored
        for name, stored in tensors.items()
        if name in expected or not name.endswith(".bias") or bool(stored.read().any())
    }


def files_of(tensors: Mapping[str, StoredTensor]) -> tuple[Path, ...]:
    return tuple(sorted({stored.file for stored in tensors.values()}))
