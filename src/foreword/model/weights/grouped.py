"""`GroupedInt`: the one form of every quantised matrix, small integers with a scale per group.

    weight[o, k] = scale[o, g] * q[o, k] + offset[o, g]        g = k // group

Scales stay as the file holds them, so that a backend can pack no more bytes than the file has:

- one level: `scale`, and `offset` where the type has one;
- two levels: scale = super_scale * sub_scale, offset = super_offset * sub_offset, where one number
  of the super level serves `groups // supers` groups in a row;
- an integer zero point: `scale`, and offset = -(scale * zero).

Knows no file format and no kernel layout: `q` has one value a byte while it is being loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

BITS = (4, 5, 6, 8)
GROUPS = (16, 32, 64, 128)  # or the length of a row


@dataclass(frozen=True, slots=True, eq=False)
class GroupedInt:
    """A matrix [out, in]. Every tensor is contiguous, on the CPU, and the object's own.

    bits: 4, 5, 6 or 8; values lie in [0, 2^bits) or, signed, in [-2^(bits-1), 2^(bits-1)).
    group: input columns that share a scale: 16, 32, 64, 128 or the whole row.
    """

    bits: int
    group: int
    signed: bool
    q: Tensor  # uint8, or int8 when signed [out, in]
    scale: Tensor | None = None  # float16 or float32 [out, groups]
    offset: Tensor | None = None  # float16 or float32 [out, groups]
    super_scale: Tensor | None = None  # float16 [out, supers]
    sub_scale: Tensor | None = None  # int8 or uint8 [out, groups]
    super_offset: Tensor | None = None  # float16 [out, supers]
    sub_offset: Tensor | None = None  # uint8 [out, groups]
    zero: Tensor | None = None  # uint8 [out, groups]
    sub_bits: int = 0  # bits of a sub_scale or sub_offset in the file, 0 without
    zero_bits: int = 0

    def __post_init__(self) -> None:
        rows, columns = self.q.shape
        assert self.bits in BITS, self.bits
        assert self.group in GROUPS or self.group == columns, self.group
        assert columns % self.group == 0, (columns, self.group)
        assert self.q.dtype == (torch.int8 if self.signed else torch.uint8), self.q.dtype
        assert (
            (self.scale is None) == (self.super_scale is not None) == (self.sub_scale is not None)
        )
        assert (self.super_offset is None) == (self.sub_offset is None)
        assert (self.offset, self.super_offset, self.zero).count(None) >= 2
        assert not self.signed or not self.has_offset, "signed integers have no offset"
        assert self.super_scale is None or (self.offset is None and self.zero is None)
        for part in (self.scale, self.offset, self.sub_scale, self.sub_offset, self.zero):
            assert part is None or part.shape == (rows, self.groups), part.shape
        for part in (self.super_scale, self.super_offset):
            assert part is None or (len(part) == rows and self.groups % part.shape[1] == 0)

    @property
    def shape(self) -> torch.Size:
        return self.q.shape

    @property
    def groups(self) -> int:
        """Groups in a row."""
        return self.q.shape[1] // self.group

    @property
    def has_offset(self) -> bool:
        return not (self.offset is None and self.super_offset is None and self.zero is None)

    @property
    def num_bytes(self) -> int:
        """Bytes when q is packed at `bits` and sub-scales and zeros as tightly as in the file."""
        total = self.q.numel() * self.bits
        for part in (self.scale, self.offset, self.super_scale, self.super_offset):
            total += 0 if part is None else 8 * part.numel() * part.element_size()
        for part in (self.sub_scale, self.sub_offset):
            total += 0 if part is None else part.numel() * self.sub_bits
        total += 0 if self.zero is None else self.zero.numel() * self.zero_bits
        return -(-total // 8)

    def scales(self) -> Tensor:
        """float32 [out, groups]; two levels: the float32 product of both."""
        if self.scale is not None:
            return self.scale.float()
        assert self.super_scale is not None
        assert self.sub_scale is not None
        return _product(self.super_scale, self.sub_scale)

    def offsets(self) -> Tensor | None:
        """float32 [out, groups], None for a type without; two levels: the float32 product."""
        if self.offset is not None:
            return self.offset.float()
        if self.zero is not None:
            assert self.scale is not None
            return -(self.scale.float() * self.zero)
        if self.super_offset is None:
            return None
        assert self.sub_offset is not None
        return _product(self.super_offset, self.sub_offset)

    def dequantize(self) -> Tensor:
        """float32 [out, in]: float32(scale * q), then float32(that + offset)."""
        rows, columns = self.shape
        values = self.q.view(rows, self.groups, self.group).float()
        values *= self.scales()[:, :, None]
        offsets = self.offsets()
        if offsets is not None:
            values += offsets[:, :, None]
        return values.view(rows, columns)

    def rows(self, chosen: slice | Tensor) -> GroupedInt:
        """Some rows, copied: a slice, or their numbers (int64) in the order wanted."""

        def take(part: Tensor) -> Tensor:
            return part[chosen].clone(memory_format=torch.contiguous_format)

        return self._each(take)

    def _each(self, change: Callable[[Tensor], Tensor]) -> GroupedInt:
        """The same with `change` applied to every tensor."""
        tensors = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = {name: change(part) for name, part in tensors.items() if isinstance(part, Tensor)}
        return replace(self, **changed)  # type: ignore[arg-type]


def _product(outer: Tensor, inner: Tensor) -> Tensor:
    """float32 [out, groups] of [out, supers] and [out, groups]."""
    rows, groups = inner.shape
    supers = outer.shape[1]
    product = outer.float()[:, :, None] * inner.view(rows, supers, groups // supers).float()
    return product.view(rows, groups)


def dense(weight: Tensor | GroupedInt) -> Tensor:
    """The matrix as floats, whatever it is."""
    return weight.dequantize() if isinstance(weight, GroupedInt) else weight
