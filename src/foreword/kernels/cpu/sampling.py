"""Sampling and row operations of the extension: addresses and packed structs in, numbers out.

The meaning of every answer is sample/'s, bit for bit; native/sampling.h says how it is reached. No
answer depends on the instruction set or on the number of threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt

from foreword.kernels._rows import check_ids, check_top_k, nan_in_row
from foreword.kernels.cpu.room import place
from foreword.protocols import RowAsk

_ASK = struct.Struct("=QdddqQQq")  # native Ask: values, temperature, top_p, min_p, top_k, seed,
# position, logprobs

Rows = npt.NDArray[np.float32]


class NativeRows:
    """Implements protocols.CompiledRows on the threads that `pool` names at the time of a call."""

    def __init__(self, native: Any, pool: Callable[[], Any], isa: str) -> None:
        self._native = native
        self._pool = pool
        self._isa = isa

    def choose(
        self, asks: SequenceOf[RowAsk]
    ) -> list[tuple[int, int, float, list[tuple[int, float]]]]:
        if not asks:
            return []
        size = len(asks[0][0])
        assert all(len(ask[0]) == size for ask in asks), "rows of one length"
        packed = b"".join([_pack(ask) for ask in asks])
        found: list[Any] = self._native.choose_rows(self._isa, self._pool(), size, packed)
        return found

    def rank(self, ask: RowAsk, count: int) -> tuple[int, list[tuple[int, float]]]:
        found: tuple[int, list[tuple[int, float]]] = self._native.rank_row(
            self._isa, self._pool(), len(ask[0]), _pack(ask), count
        )
        return found

    def top_k(self, rows: Rows, k: int) -> tuple[npt.NDArray[np.int32], Rows]:
        check_top_k(rows, k)
        rows = np.require(rows, requirements=("C", "A"))
        ids = np.empty((len(rows), k), dtype=np.int32)
        values = np.empty((len(rows), k), dtype=np.float32)
        places = place(rows), place(ids), place(values)
        bad = self._native.top_k(self._isa, self._pool(), *rows.shape, k, *places)
        if bad >= 0:
            raise nan_in_row(bad)
        return ids, values

    def gumbel(self, seed: int, position: int, ids: list[int]) -> list[float]:
        if ids and min(ids) < 0:
            raise ValueError(f"ids must be >= 0, got {min(ids)}")
        values: list[float] = self._native.gumbel(seed, position, ids)
        return values

    def log_softmax(self, rows: Rows, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        check_ids(rows, ids)
        rows = np.require(rows, requirements=("C", "A"))
        ids = np.require(ids, requirements=("C", "A"))
        found = np.empty(len(rows))
        places = place(rows), place(ids), place(found)
        self._native.log_softmax(self._isa, self._pool(), *rows.shape, *places)
        return found


def _pack(ask: RowAsk) -> bytes:
    row = ask[0]
    return _ASK.pack(place(row), *ask[1:])
