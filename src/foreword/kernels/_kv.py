"""Rows of a KV pool in its format, for the backends on tensors (the cpu backend has its own).

int8: one scale per token and head, from that row alone; a head's row is head_dim integers, then the
four bytes of the scale:

    scale = amax(|x|) / 127, q = x / scale rounded half to even; all 0 where the scale is 0

A row with a number that is not finite keeps it in its scale, and its integers are 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def stored(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows [..., head_dim] as a pool of `dtype` holds them: rounded, or int8 with their scale."""
    if dtype != torch.int8:
        return rows.to(dtype)
    rows = rows.float()
    scale = rows.abs().amax(-1, keepdim=True) / 127.0
    plain = scale.isfinite() & (scale != 0)
    integers = (rows / scale.masked_fill(~plain, 1.0)).round().clamp(-127.0, 127.0)
    integers = integers.masked_fill(~plain, 0.0).to(torch.int8)
    return torch.cat([integers, scale.contiguous().view(torch.int8)], -1)


def widened(rows: Tensor, head_dim: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`dtype` [..., head_dim] of rows of a pool in any format."""
    if rows.dtype != torch.int8:
        return rows.to(dtype)
    scale = rows[..., head_dim:].contiguous().view(torch.float32)
    return rows[..., :head_dim].to(dtype) * scale.to(dtype)
