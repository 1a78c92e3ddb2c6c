"""AWQ folders (version gemm): 4-bit integers and zero points packed along the output rows.

Of a matrix [out, in] the file holds, all transposed: `qweight` int32 [in, out / 8], `scales`
[groups, out] and `qzeros` int32 [groups, out / 8]. The eight values of a word are, lowest bits
first, columns 0 2 4 6 1 3 5 7 of eight. weight = scale * (q - zero).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.errors import UnsupportedModel
from foreword.model.weights.checkpoint import StoredTensor
from foreword.model.weights.fields import Fields
from foreword.model.weights.grouped import GroupedInt
from foreword.model.weights.words import SCALE_KINDS, group_size, grouped, require, unpack

_PLACE = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word each of eight columns lies


@dataclass(frozen=True, slots=True)
class Scheme:
    bits: int = 4


def scheme(fields: Fields) -> Scheme:
    """The settings of a quantization_config. Raises UnsupportedModel naming what cannot be run."""
    bits = fields.optional_integer("bits") or fields.integer("w_bit")
    version = str(fields.get("version") or "gemm").lower()
    if bits != 4 or version != "gemm":
        raise UnsupportedModel(
            f"{fields.where}: AWQ version {version!r} with {bits} bits is not supported;"
            " gemm with 4 is"
        )
    if not fields.flag("zero_point", default=True):
        raise UnsupportedModel(f"{fields.where}: AWQ without zero points is not supported")
    return Scheme()


def parts(how: Scheme) -> tuple[tuple[str, ...], int]:
    """Names of a matrix's parts, the chief one first, and how many of them must be there."""
    return ("qweight", "qzeros", "scales"), 3


def matrix(stem: str, held: Mapping[str, StoredTensor], how: Scheme) -> tuple[int, int]:
    """Check the parts of one matrix; its shape (out, in)."""
    weight, scales = held["qweight"], held["scales"]
    columns, words = weight.shape if len(weight.shape) == 2 else (0, 0)
    rows, groups = words * 8, scales.shape[0] if scales.shape else 0
    require(f"{stem}.qweight", weight, ("I32",), (columns, words))
    require(f"{stem}.scales", scales, SCALE_KINDS, (groups, rows))
    require(f"{stem}.qzeros", held["qzeros"], ("I32",), (groups, words))
    group_size(columns, groups, f"{weight.file}: {stem}")
    return rows, columns


def read(stem: str, held: Mapping[str, StoredTensor], how: Scheme) -> GroupedInt:
    q = _in_order(held["qweight"].read())
    zero = _in_order(held["qzeros"].read())
    scale = held["scales"].read().t()
    return grouped(q, scale, zero, how.bits, f"{held['qweight'].file}: {stem}")


def _in_order(words: Tensor) -> Tensor:
    """int32 [n, out / 8] -> uint8 [out, n]."""
    values = unpack(words, 4).view(len(words), -1, 8)[:, :, torch.tensor(_PLACE, device="cpu")]
    return values.reshape(len(words), -1).t().contiguous()
