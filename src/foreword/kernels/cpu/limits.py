"""What this machine can do at best, measured: reading memory, and multiplying with the kernels of
an instruction set. Benchmarks print their figures as shares of these; no token depends on them.
"""

from __future__ import annotations

from typing import Any

import torch

from foreword.kernels.cpu.backend import choose_isa, load_native
from foreword.kernels.cpu.packing import Packer
from foreword.model.weights.grouped import GroupedInt

_OUTPUTS, _INPUTS = 512, 1024  # int8: half a megabyte, in the second cache of any machine
_ROWS = 128
_LEAST_SECONDS = 0.02  # of one measurement


class Limits:
    """Of `threads` threads with the kernels of `isa` (None: the best here).

    num_bytes: memory to read from beginning to end, of the size of the model's packed weights.
    Raises KernelUnavailable without the compiled extension or for an `isa` this machine lacks.
    """

    def __init__(self, num_bytes: int, threads: int, isa: str | None = None) -> None:
        native = load_native()
        self.isa = choose_isa(native, isa)
        self.threads = threads
        self._native = native
        self._pool = native.Pool(threads)
        self._probe = native.ReadProbe(num_bytes, self._pool)

    @property
    def read_bytes(self) -> int:
        """Bytes that `read_seconds` reads."""
        return int(self._probe.num_bytes)

    def read_seconds(self) -> float:
        """Seconds of reading the memory once, with all threads."""
        return float(self._probe.seconds(self._pool))

    def matrix_rate(self, kind: str) -> float:
        """10^12 operations a second (a multiplication and an addition are two) of products of 128
        rows with a matrix that stays in the caches; kind: bfloat16 or int8."""
        weight = self.weight(kind)
        operations = 2 * _ROWS * _OUTPUTS * _INPUTS * self.threads
        times = 1
        while True:
            seconds = self._native.time_product(weight, self.isa, self._pool, _ROWS, times)
            if seconds >= _LEAST_SECONDS:
                return float(operations * times / seconds / 1e12)
            times *= 4

    def weight(self, kind: str) -> Any:
        """The packed matrix that `matrix_rate` multiplies by."""
        numerics = {"bfloat16": "bfloat16", "int8": "a8"}[kind]
        return Packer(self._native, numerics, self._pool).matrix(_matrix(kind))


def _matrix(kind: str) -> torch.Tensor | GroupedInt:
    numbers = torch.arange(_OUTPUTS * _INPUTS).reshape(_OUTPUTS, _INPUTS) % 255 - 127
    if kind == "bfloat16":
        return (numbers / 127).bfloat16()
    q = numbers.to(torch.int8)
    return GroupedInt(8, _INPUTS, True, q, scale=torch.full((_OUTPUTS, 1), 1 / 127))
