"""What the integer formats of Hugging Face folders share: int32 words, zero points, scales.

Knows no format's names.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.weights.checkpoint import StoredTensor
from foreword.model.weights.grouped import GROUPS, GroupedInt

SCALE_KINDS = ("F16", "BF16", "F32")


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [rows, words] -> uint8 [rows, values]: a word's lowest bits are its first value."""
    raw = words.contiguous().view(torch.uint8)
    if bits == 8:
        return raw.clone()
    assert bits == 4, bits
    return torch.stack([raw & 15, raw >> 4], dim=-1).reshape(len(raw), -1)


def grouped(q: Tensor, scale: Tensor, zero: Tensor | None, bits: int, where: str) -> GroupedInt:
    """weight = scale * (q - zero), q and zero unsigned; zero None: the middle, 2^(bits-1).

    q [out, in], scale and zero [out, groups]. A zero that is the middle everywhere makes a signed
    matrix without offset. Raises UnsupportedModel naming `where` for a group no kernel knows.
    """
    columns, groups = q.shape[1], scale.shape[1]
    group = group_size(columns, groups, where)
    repeats = columns // group // groups
    scale = _narrow(scale).repeat_interleave(repeats, dim=1)
    middle = 1 << (bits - 1)
    if zero is None or bool((zero == middle).all()):
        signed = (q - middle).view(torch.int8)  # uint8 wraps round
        return GroupedInt(bits, group, True, signed, scale=scale.contiguous())
    zero = zero.repeat_interleave(repeats, dim=1).contiguous()
    return GroupedInt(bits, group, False, q, scale=scale.contiguous(), zero=zero, zero_bits=bits)


def group_size(columns: int, groups: int, where: str) -> int:
    """Columns in a group as kernels know them: one of GROUPS, or the row; wider ones are cut."""
    if groups < 1 or columns % groups:
        raise WeightsError(f"{where}: {groups} groups do not divide rows of {columns} evenly")
    group = columns // groups
    if group in GROUPS or groups == 1:
        return group
    if group % max(GROUPS) == 0:
        return max(GROUPS)
    sizes = ", ".join(map(str, GROUPS))
    raise UnsupportedModel(
        f"{where}: groups of {group} columns are not supported; {sizes} and whole rows are"
    )


def require(
    where: str, stored: StoredTensor, kinds: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    """Raises WeightsError when a part has another type or shape than its matrix needs."""
    if stored.kind not in kinds or stored.shape != shape:
        raise WeightsError(
            f"{stored.file}: tensor {where!r} is {stored.kind} {list(stored.shape)},"
            f" it must be {' or '.join(kinds)} {list(shape)}"
        )


def _narrow(scale: Tensor) -> Tensor:
    """float16 where that loses nothing, else float32."""
    half = scale.to(torch.float16)
    return half if torch.equal(half.float(), scale.float()) else scale.float()
