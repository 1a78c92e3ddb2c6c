"""GPTQ folders: 4- and 8-bit integers packed along the input, their zero points along the output.

Of a matrix [out, in] the file holds, all transposed: `qweight` int32 [in * bits / 32, out],
`scales` [groups, out], `qzeros` int32 [groups, out * bits / 32], and `g_idx` int32 [in], the group
of every column. weight = scale * (q - zero). Format "gptq" stores zero - 1, "gptq_v2" the zero
itself. Columns in activation order (a g_idx that is not ascending) are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from foreword.errors import UnsupportedModel
from foreword.model.weights.checkpoint import StoredTensor
from foreword.model.weights.fields import Fields
from foreword.model.weights.grouped import GroupedInt
from foreword.model.weights.words import SCALE_KINDS, group_size, grouped, require, unpack

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scheme:
    bits: int
    symmetric: bool
    stores_zero: bool  # else zero - 1


def scheme(fields: Fields) -> Scheme:
    """The settings of a quantization_config. Raises UnsupportedModel naming what cannot be run."""
    bits = fields.integer("bits")
    if bits not in (4, 8):
        raise UnsupportedModel(
            f"{fields.where}: GPTQ with {bits} bits is not supported; 4 and 8 are"
        )
    layout = fields.get("checkpoint_format") or fields.get("format") or "gptq"
    if layout not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(f"{fields.where}: GPTQ format {layout!r} is not supported")
    if fields.get("dynamic"):
        raise UnsupportedModel(f"{fields.where}: GPTQ with settings per layer (dynamic)")
    if fields.get("pack_dtype") not in (None, "int32"):
        raise UnsupportedModel(f"{fields.where}: GPTQ pack_dtype {fields.get('pack_dtype')!r}")
    return Scheme(bits, fields.flag("sym", default=True), layout == "gptq_v2")


def parts(how: Scheme) -> tuple[tuple[str, ...], int]:
    """Names of a matrix's parts, the chief one first, and how many of them must be there."""
    return ("qweight", "qzeros", "scales", "g_idx"), 3


def matrix(stem: str, held: Mapping[str, StoredTensor], how: Scheme) -> tuple[int, int]:
    """Check the parts of one matrix; its shape (out, in)."""
    weight, scales = held["qweight"], held["scales"]
    per_word = 32 // how.bits
    words, rows = weight.shape if len(weight.shape) == 2 else (0, 0)
    columns, groups = words * per_word, scales.shape[0] if scales.shape else 0
    require(f"{stem}.qweight", weight, ("I32",), (words, rows))
    require(f"{stem}.scales", scales, SCALE_KINDS, (groups, rows))
    require(f"{stem}.qzeros", held["qzeros"], ("I32",), (groups, rows // per_word))
    group_size(columns, groups, f"{weight.file}: {stem}")
    if "g_idx" in held:
        require(f"{stem}.g_idx", held["g_idx"], ("I32",), (columns,))
        order = held["g_idx"].read().long()
        if not torch.equal(order, torch.arange(columns, device="cpu") // (columns // groups)):
            raise UnsupportedModel(
                f"{weight.file}: {stem}.g_idx: columns in activation order (desc_act) are not"
                " supported; use a checkpoint made with desc_act false, or a GGUF file"
            )
    return rows, columns


def read(stem: str, held: Mapping[str, StoredTensor], how: Scheme) -> GroupedInt:
    q = unpack(held["qweight"].read().t(), how.bits)
    zero = _zeros(stem, held["qzeros"].read(), how).t()
    scale = held["scales"].read().t()
    return grouped(q, scale, zero, how.bits, f"{held['qweight'].file}: {stem}")


def _zeros(stem: str, words: Tensor, how: Scheme) -> Tensor:
    """uint8 [groups, out]."""
    middle = 1 << (how.bits - 1)
    stored = unpack(words, how.bits)
    if how.stores_zero:
        return stored
    if how.symmetric and bool((stored == middle).all()):
        log.warning("%s: zero points are stored as in gptq_v2; read so", stem)
        return stored
    one = sum(1 << shift for shift in range(0, 32, how.bits))  # with carries: as it was taken off
    return unpack((words.long() + one).to(torch.int32), how.bits)
