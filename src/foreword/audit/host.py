"""A host program that has flipped every global switch that could move a bit, for a while.

Matrix products at reduced precision, autocast, another default dtype, flush-to-zero, another thread
count, numpy raising on overflow. The engine pins what it needs (kernels/guard.py); here is the
proof. Everything is put back on exit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from foreword.kernels.guard import flushes_denormals


@contextmanager
def host_settings(name: str) -> Iterator[None]:
    """`clean` changes nothing, `hostile` flips them all."""
    if name == "clean":
        yield
        return
    assert name == "hostile", name
    threads, flushed = torch.get_num_threads(), flushes_denormals()
    precision, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(threads + 2)
        torch.set_flush_denormal(True)
        with torch.autocast("cpu", dtype=torch.bfloat16), np.errstate(all="raise"):
            yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        torch.set_float32_matmul_precision(precision)
