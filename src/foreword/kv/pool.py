"""The tensors of a KV cache: per layer, one row of keys and one of values per slot.

Slot 0 is the null slot: always zero, so that padding lanes of an attention read have something
harmless to point at. This file knows rows, not sequences: who owns a slot is decided by the stores
(`paged.py`, `dense.py`), and kernels write rows directly. It is the only file of kv/ with torch.

A head's row in format int8 is head_dim integers and then the four bytes of its float32 scale, so
that whatever moves the row moves its scale.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
import torch
from torch import Tensor

from foreword import machine
from foreword.errors import ConfigError

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}  # by name
SCALE_BYTES = 4
PAGE = 4096


class KVPool:
    """`keys[layer]` and `values[layer]`: [num_slots, num_kv_heads, width] of `dtype`, zeroed, where
    width is `row_width`: head_dim, and room for a scale in int8.

    Raises ConfigError when the memory cannot be had.
    """

    def __init__(
        self,
        num_layers: int,
        num_slots: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_slots < 2:
            raise ConfigError(
                f"a KV pool needs at least 2 slots, got {num_slots}; give it more memory"
            )
        self.num_layers = num_layers
        self.num_slots = num_slots
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = torch.device(device)
        shape = (num_slots, num_kv_heads, row_width(head_dim, dtype))
        try:
            # Plain tensors even when the caller is in inference mode: they outlive it.
            with torch.inference_mode(False):
                parts = _zeros(2 * num_layers, shape, dtype, self.device)
        except (RuntimeError, OSError, OverflowError) as error:  # torch.OutOfMemoryError is one
            size = num_slots * bytes_per_slot(num_layers, num_kv_heads, head_dim, dtype)
            raise ConfigError(
                f"cannot allocate {size} bytes for {num_slots} KV slots on {self.device}; "
                f"lower the KV cache memory"
            ) from error
        self.keys: list[Tensor] = parts[:num_layers]
        self.values: list[Tensor] = parts[num_layers:]

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return self.num_slots * bytes_per_slot(
            self.num_layers, self.num_kv_heads, self.head_dim, self.dtype
        )

    def move(self, source: np.ndarray, destination: np.ndarray) -> None:
        """Copy rows `source[i]` -> `destination[i]` (int64 [n]) in every layer, as if all were read
        before any is written. Destinations are distinct and never the null slot."""
        if len(source) == 0:
            return
        assert len(source) == len(destination) == len(set(destination.tolist())), destination
        assert destination.min() > 0, f"slot 0 is the null slot: {destination}"
        rows = torch.from_numpy(source).to(self.device)
        places = torch.from_numpy(destination).to(self.device)
        for tensor in (*self.keys, *self.values):
            tensor.index_copy_(0, places, tensor.index_select(0, rows))  # the gather is a copy

    def check(self) -> None:
        """Assert that the null slot is still zero."""
        for layer, pair in enumerate(zip(self.keys, self.values, strict=True)):
            for name, tensor in zip(("keys", "values"), pair, strict=True):
                assert not tensor[0].any(), f"slot 0 (null): {name} of layer {layer} were written"


def available_bytes(device: str) -> int | None:
    """Free memory of the device that will hold weights and pool; None where it cannot be told."""
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    return machine.available_memory()


def row_width(head_dim: int, dtype: torch.dtype) -> int:
    """Elements of one head's row."""
    return head_dim + SCALE_BYTES if dtype == torch.int8 else head_dim


def bytes_per_slot(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes one token costs: keys and values, all layers."""
    return 2 * num_layers * num_kv_heads * row_width(head_dim, dtype) * dtype.itemsize


def _zeros(
    count: int, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Tensors of zeros. On the CPU they share one mapping, in huge pages where the system has them:
    reading a long context touches every page once, and small ones halve its speed."""
    if device.type != "cpu":
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(count)]
    numbers = shape[0] * shape[1] * shape[2]
    step = -(-numbers * dtype.itemsize // PAGE) * PAGE
    memory = mmap.mmap(-1, count * step)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return [
        torch.frombuffer(memory, dtype=dtype, count=numbers, offset=index * step).view(shape)
        for index in range(count)
    ]
