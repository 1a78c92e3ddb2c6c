"""The products of modes a16 and a8 as plainly as they can be: one row, one group at a time.

The promise of `ops.py` in code: the reference backend runs it, tests compare with it. `compute` is
float32 in use, float64 when a test needs to know the error of float32.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from foreword.model.weights.grouped import GroupedInt

LARGEST = 127  # of an activation in a8


def product(weight: GroupedInt, line: Tensor, numerics: str, compute: torch.dtype) -> Tensor:
    """y [out] of one row of activations [in] in dtype `compute`."""
    terms = _terms_a16 if numerics == "a16" else _terms_a8
    total = torch.zeros(weight.shape[0], dtype=compute, device="cpu")
    for term in terms(weight, line, compute):
        total = total + term
    return total


def _terms_a16(weight: GroupedInt, line: Tensor, compute: torch.dtype) -> Iterator[Tensor]:
    scales, offsets = weight.scales().to(compute), weight.offsets()
    rounded = line.bfloat16().to(compute)
    for group in range(weight.groups):
        columns = slice(group * weight.group, (group + 1) * weight.group)
        q = weight.q[:, columns].to(compute, memory_format=torch.contiguous_format)
        dot = torch.mv(q, rounded[columns])
        term = scales[:, group] * dot
        if offsets is not None:
            term = term + offsets[:, group].to(compute) * rounded[columns].sum()
        yield term


def _terms_a8(weight: GroupedInt, line: Tensor, compute: torch.dtype) -> Iterator[Tensor]:
    scales, offsets = weight.scales().to(compute), weight.offsets()
    for group in range(weight.groups):
        columns = slice(group * weight.group, (group + 1) * weight.group)
        values, step = quantised_line(line[columns])
        exact = torch.mv(weight.q[:, columns].double(), values.double())  # integers below 2^53
        term = scales[:, group] * exact.to(compute)
        if offsets is not None:
            term = term + offsets[:, group].to(compute) * values.double().sum().to(compute)
        yield step * term


def quantised_line(part: Tensor) -> tuple[Tensor, Tensor]:
    """One row's activations in one group -> whole numbers in [-127, 127], and their step."""
    step = part.abs().amax() / LARGEST
    step = part.abs().amax() / LARGEST
    usable = (step > 0) & step.isfinite()
    values = (part / step).round().clamp(-LARGEST, LARGEST)
    return torch.where(usable, values, torch.zeros_like(values)), step


def embedding_row(weight: GroupedInt, token: int, compute: torch.dtype) -> Tensor:
    """Row `token` as floats, [in]."""
    return weight.rows(slice(token, token + 1)).dequantize()[0].to(compute)
