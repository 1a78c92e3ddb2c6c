"""Quantise a checkpoint's matrices while they are loaded, because the user asked for it by name.

int8: symmetric, one float32 scale per output row, amax / 127; q = round half even, in [-127, 127].
int4: groups of 32 with a float16 scale (max - min) / 15 and a float16 offset min, as stored
rounded; q = round half even of (w - offset) / scale, in [0, 15].
Norms and biases stay. A matrix that the file holds quantised is dequantised first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from foreword.errors import ConfigError, WeightsError
from foreword.model.weights.checkpoint import Checkpoint, StoredTensor
from foreword.model.weights.grouped import GroupedInt

INT4_GROUP = 32
_ROWS = 256  # rows quantised at a time


def quantised(checkpoint: Checkpoint, method: str) -> Checkpoint:
    """The same checkpoint with every matrix quantised by `method` (a name in METHODS) when read.

    Raises ConfigError naming a matrix whose rows do not hold whole groups.
    """
    tensors = dict(checkpoint.tensors)
    for name, stored in tensors.items():
        if len(stored.shape) == 2:
            tensors[name] = _quantised(name, stored, method)
    return replace(checkpoint, tensors=tensors, quantization=method)


def _quantised(name: str, stored: StoredTensor, method: str) -> StoredTensor:
    rows, columns = stored.shape
    if method == "int4" and columns % INT4_GROUP:
        raise ConfigError(
            f"quantization int4 needs rows of a multiple of {INT4_GROUP} numbers, tensor {name!r}"
            f" has {columns}; use int8"
        )

    def read_grouped() -> GroupedInt:
        weight = stored.read()
        if not all(bool(torch.isfinite(part).all()) for part in torch.split(weight, _ROWS)):
            raise WeightsError(f"{stored.file}: tensor {name!r} holds values that are not finite")
        try:
            return METHODS[method](weight)
        except OverflowError:
            raise WeightsError(
                f"{stored.file}: tensor {name!r} exceeds what {method} can hold; use int8"
            ) from None

    bits = {"int8": 8, "int4": 4}[method]
    scales = 4 * rows if method == "int8" else 4 * rows * columns // INT4_GROUP
    return replace(
        stored,
        dtype=torch.float32,
        kind=method.upper(),
        num_bytes=rows * columns * bits // 8 + scales,
        read=functools.partial(_dequantised, read_grouped),
        read_grouped=read_grouped,
        group=columns if method == "int8" else INT4_GROUP,
    )


def _dequantised(read: Callable[[], GroupedInt]) -> Tensor:
    return read().dequantize()


def int8(weight: Tensor) -> GroupedInt:
    """[out, in] of any float dtype, finite."""
    rows, columns = weight.shape
    q = torch.empty((rows, columns), dtype=torch.int8, device="cpu")
    scale = torch.empty((rows, 1), dtype=torch.float32, device="cpu")
    for start in range(0, rows, _ROWS):
        part = weight[start : start + _ROWS].float()
        scale[start : start + _ROWS] = part.abs().amax(1, keepdim=True) / 127
        q[start : start + _ROWS] = _steps(part, scale[start : start + _ROWS]).clamp_(-127, 127)
    return GroupedInt(8, columns, True, q, scale=scale)


def int4(weight: Tensor) -> GroupedInt:
    """[out, in] of any float dtype, finite, in a multiple of 32. OverflowError beyond float16."""
    rows, columns = weight.shape
    groups = columns // INT4_GROUP
    q = torch.empty((rows, columns), dtype=torch.uint8, device="cpu")
    scale = torch.empty((rows, groups), dtype=torch.float16, device="cpu")
    offset = torch.empty((rows, groups), dtype=torch.float16, device="cpu")
    for start in range(0, rows, _ROWS):
        here = slice(start, start + _ROWS)
        part = weight[here].float().reshape(-1, groups, INT4_GROUP)
        least, most = part.amin(2), part.amax(2)
        scale[here], offset[here] = (most - least) / 15, least
        steps = _steps(part - offset[here].float()[:, :, None], scale[here].float()[:, :, None])
        q[here] = steps.clamp_(0, 15).reshape(-1, columns)
    if not bool((torch.isfinite(scale) & torch.isfinite(offset)).all()):
        raise OverflowError
    return GroupedInt(4, INT4_GROUP, False, q, scale=scale, offset=offset)


def _steps(values: Tensor, scale: Tensor) -> Tensor:
    """values / scale, rounded half to even; 0 where the scale is."""
    return torch.where(scale == 0, torch.zeros_like(values), (values / scale).round_())


METHODS: dict[str, Callable[[Tensor], GroupedInt]] = {"int8": int8, "int4": int4}
