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

# Native Ask: values, raw, temperature, top_p, min_p, typical_p, xtc_probability, xtc_threshold, mu,
# top_k, seed, position, logprobs, first_edit, num_edits; and native Edit: kind, ids, values, count,
# factor.
_ASK = struct.Struct("=QQdddddddqQQqqq")
_EDIT = struct.Struct("=qQQqd")

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
        size = len(asks[0].row)
        assert all(len(ask.row) == size for ask in asks), "rows of one length"
        found: list[Any] = self._native.choose_rows(self._isa, self._pool(), size, *_pack(asks))
        return found

    def rank(self, ask: RowAsk, count: int) -> tuple[int, list[tuple[int, float]]]:
        found: tuple[int, list[tuple[int, float]]] = self._native.rank_row(
            self._isa, self._pool(), len(ask.row), *_pack([ask]), count
        )
        return found

    def open_row(self, ask: RowAsk) -> tuple[int, Rows]:
        found = np.empty(len(ask.row), dtype=np.float32)
        fault: int = self._native.open_row(
            self._isa, self._pool(), len(found), *_pack([ask]), place(found)
        )
        return fault, found

    def surprise(self, ask: RowAsk, token: int) -> tuple[int, float]:
        found: tuple[int, float] = self._native.surprise(
            self._isa, self._pool(), len(ask.row), *_pack([ask]), token
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


def _pack(asks: SequenceOf[RowAsk]) -> tuple[bytes, bytes]:
    """Asks and all their edits; whoever packs keeps the asks until the call returns."""
    packed: list[bytes] = []
    edits: list[bytes] = []
    for ask in asks:
        row, raw, seed, position, temperature, top_k, *filters, logprobs, changes = ask
        first = len(edits)
        for kind, ids, values, factor in changes:
            at = 0 if values is None else place(values)
            edits.append(_EDIT.pack(kind, place(ids), at, len(ids), factor))
        address = place(row)
        base = address if raw is row else place(raw)
        numbers = (top_k, seed, position, logprobs, first, len(changes))
        packed.append(_ASK.pack(address, base, temperature, *filters, *numbers))
    return b"".join(packed), b"".join(edits)
