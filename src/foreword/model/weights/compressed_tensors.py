"""compressed-tensors folders: integers of 4 and 8 bits with a scale per group or per output row.

Of a matrix [out, in], format pack-quantized holds `weight_packed` int32 [out, in * bits / 32], with
2^(bits-1) added to every value, `weight_scale` [out, groups], `weight_shape`, and when asymmetric
`weight_zero_point`, int32 [out * bits / 32, groups], packed along the rows in the same way. Format
int-quantized holds int8 `weight` [out, in]. weight = scale * (q - zero). How activations should be
quantised is the numerics' choice, not the file's: `input_activations` that need no stored scale are
accepted and not used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foreword.errors import UnsupportedModel
from foreword.model.weights.checkpoint import StoredTensor
from foreword.model.weights.fields import Fields
from foreword.model.weights.grouped import GroupedInt
from foreword.model.weights.words import SCALE_KINDS, group_size, grouped, require, unpack

_FORMATS = ("pack-quantized", "int-quantized")


@dataclass(frozen=True, slots=True)
class Scheme:
    bits: int
    packed: bool


def scheme(fields: Fields) -> Scheme:
    """The settings of a quantization_config. Raises UnsupportedModel naming what cannot be run."""
    layout, groups = fields.get("format"), fields.get("config_groups")
    if layout not in _FORMATS:
        raise _unsupported(fields, f"format {layout!r}")
    if not isinstance(groups, dict) or not groups:
        raise fields.fail("config_groups", "a mapping of groups")
    if fields.get("kv_cache_scheme"):
        raise _unsupported(fields, "kv_cache_scheme")
    sparsity = fields.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("format") not in (None, "dense"):
        raise _unsupported(fields, f"sparsity format {sparsity['format']!r}")
    found = {_bits(fields, name, group) for name, group in groups.items()}
    if len(found) != 1:
        raise _unsupported(fields, f"weights of {' and '.join(map(str, sorted(found)))} bits")
    return Scheme(found.pop(), layout == "pack-quantized")


def _bits(fields: Fields, name: str, group: Any) -> int:
    """Bits of one config group's weights."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise fields.fail("config_groups", f"groups with weights, {name} has none")
    for key, allowed in (
        ("num_bits", (4, 8)),
        ("type", ("int",)),
        ("strategy", ("group", "channel")),
    ):
        if weights.get(key) not in allowed:
            raise _unsupported(fields, f"weights with {key} {weights.get(key)!r}")
    inputs = group.get("input_activations")
    if isinstance(inputs, dict) and (inputs.get("type") != "int" or not inputs.get("dynamic")):
        raise _unsupported(fields, "input_activations with stored scales")
    return int(weights["num_bits"])


def _unsupported(fields: Fields, what: str) -> UnsupportedModel:
    return UnsupportedModel(f"{fields.where}: compressed-tensors {what} is not supported")


def parts(how: Scheme) -> tuple[tuple[str, ...], int]:
    """Names of a matrix's parts, the chief one first, and how many of them must be there."""
    if not how.packed:
        return ("weight", "weight_scale", "weight_zero_point"), 2
    optional = ("weight_zero_point", "weight_g_idx")
    return ("weight_packed", "weight_scale", "weight_shape", *optional), 3


def matrix(stem: str, held: Mapping[str, StoredTensor], how: Scheme) -> tuple[int, int]:
    """Check the parts of one matrix; its shape (out, in)."""
    scales = held["weight_scale"]
    rows, groups = scales.shape if len(scales.shape) == 2 else (0, 0)
    require(f"{stem}.weight_scale", scales, SCALE_KINDS, (rows, groups))
    per_word = 32 // how.bits
    if how.packed:
        weight = held["weight_packed"]
        columns = weight.shape[-1] * per_word
        require(f"{stem}.weight_packed", weight, ("I32",), (rows, columns // per_word))
        require(f"{stem}.weight_shape", held["weight_shape"], ("I64", "I32"), (2,))
        declared = held["weight_shape"].read().tolist()
        if declared != [rows, columns]:
            raise UnsupportedModel(f"{weight.file}: {stem}.weight_shape {declared} with padding")
    else:
        weight = held["weight"]
        columns = weight.shape[-1]
        require(f"{stem}.weight", weight, ("I8",), (rows, columns))
    group_size(columns, groups, f"{weight.file}: {stem}")
    zero = held.get("weight_zero_point")
    if zero is not None and zero.kind == "I32":
        words = -(-rows // per_word)
        require(f"{stem}.weight_zero_point", zero, ("I32",), (words, groups))
    elif zero is not None:
        require(f"{stem}.weight_zero_point", zero, ("I8",), (rows, groups))
    if "weight_g_idx" in held:
        order = held["weight_g_idx"].read().long()
        if not torch.equal(order, torch.arange(columns, device="cpu") // (columns // groups)):
            raise UnsupportedModel(
                f"{weight.file}: {stem}.weight_g_idx: columns in activation order (actorder group)"
                " are not supported; use actorder weight or none"
            )
    return rows, columns


def read(stem: str, held: Mapping[str, StoredTensor], how: Scheme) -> GroupedInt:
    middle = 1 << (how.bits - 1)
    scale = held["weight_scale"].read()
    main = held["weight_packed" if how.packed else "weight"]
    q = unpack(main.read(), how.bits) if how.packed else _unsigned(main.read(), middle)
    zero = None
    if "weight_zero_point" in held:
        stored = held["weight_zero_point"].read()
        if stored.dtype == torch.int32:
            zero = unpack(stored.t(), how.bits).t()[: len(scale)]
        else:
            zero = _unsigned(stored, middle)
    return grouped(q, scale, zero, how.bits, f"{main.file}: {stem}")


def _unsigned(values: Tensor, middle: int) -> Tensor:
    return values.view(torch.uint8) + middle  # wraps round
