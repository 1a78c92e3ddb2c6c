"""Hands matrices to the extension, which packs them into panels of 16 output columns.

Says which format a matrix takes in which numerics mode; the layouts themselves are native/pack.h.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foreword.kernels.ops import QUANTISED, Weight
from foreword.model.weights.grouped import GroupedInt, dense

FLOAT32, FLOAT16, BFLOAT16, PAIRS = range(4)  # native Format
WIDE_INPUT, BFLOAT16_INPUT, A8_INPUT, A16_INPUT = range(4)  # native Activation
FLAT = {torch.float32: FLOAT32, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}
_ROW_MULTIPLE = 64  # a scale per row: k is padded to whole blocks


class Packer:
    """Packs for one numerics mode, all weights into one `store`."""

    def __init__(self, native: Any, numerics: str, pool: Any) -> None:
        self.native = native
        self.numerics = numerics
        self.pool = pool
        self.store = native.Store()

    def matrix(self, weight: Weight, bias: Tensor | None = None) -> Any:
        """A native Weight [out, in]; `bias` [out] is copied as float32."""
        held = None if bias is None else bias.float().contiguous()
        address = 0 if held is None else held.data_ptr()
        if isinstance(weight, GroupedInt) and self.numerics in QUANTISED:
            return self._grouped(weight, address)
        return self._floats(dense(weight), address)

    def _floats(self, weight: Tensor, bias: int) -> Any:
        if self.numerics == "float32":
            form, inputs = FLAT[weight.dtype], WIDE_INPUT
        else:
            form, inputs, weight = PAIRS, BFLOAT16_INPUT, weight.bfloat16()
        weight = weight.contiguous()
        rows, columns = weight.shape
        return self.native.float_weight(
            self.store, self.pool, form, inputs, rows, columns, weight.data_ptr(), bias
        )

    def _grouped(self, weight: GroupedInt, bias: int) -> Any:
        rows, columns = weight.shape
        group = weight.group
        if group == columns:
            group = -(-columns // _ROW_MULTIPLE) * _ROW_MULTIPLE
        if weight.super_scale is None:
            scale, offset = _level(weight.scale), _level(weight.offset)
            units = _unit(weight)
            if weight.zero is not None:
                offset = _level(weight.zero)
        else:
            scale = _level(weight.sub_scale, weight.super_scale)
            offset = _level(weight.sub_offset, weight.super_offset)
            units = weight.groups // weight.super_scale.shape[1]
        return self.native.grouped_weight(
            self.store,
            self.pool,
            A8_INPUT if self.numerics == "a8" else A16_INPUT,
            rows,
            columns,
            weight.bits,
            group,
            units,
            1 << (weight.bits - 1) if weight.signed else 0,
            weight.q.data_ptr(),
            scale,
            offset,
            bias,
        )


def _level(part: Tensor | None, supers: Tensor | None = None) -> tuple[int, int, int, bool] | None:
    """(address, bytes of an element, address of the super level or 0, signed)."""
    if part is None:
        return None
    assert part.is_contiguous()
    above = 0 if supers is None else supers.data_ptr()
    return part.data_ptr(), part.element_size(), above, part.dtype == torch.int8


def _unit(weight: GroupedInt) -> int:
    """Groups whose scales lie together, so that their bytes fill cache lines."""
    if weight.has_offset and weight.zero is None:
        return 1
    for count in (4, 2) if weight.zero is not None else (2,):
        if weight.groups % count == 0:
            return count
    return weight.groups
