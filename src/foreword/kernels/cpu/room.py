"""Memory for the logits of a pass, used again once nobody looks at the last ones.

New memory for every pass costs page faults, and an interrupt of all threads when it is given back.
"""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt


class Room:
    """Hands out float32 arrays; whoever keeps one, or a slice of one, keeps its content."""

    def __init__(self) -> None:
        self._memory = bytearray()
        self._shown: weakref.ref[np.ndarray] | None = None  # what all slices have as their base

    def take(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        """Uninitialised [rows, columns]."""
        num_bytes = 4 * rows * columns
        in_use = self._shown is not None and self._shown() is not None
        if in_use or len(self._memory) < num_bytes:
            self._memory = bytearray(num_bytes)
        flat = np.frombuffer(self._memory, dtype=np.float32, count=rows * columns)
        self._shown = weakref.ref(flat)
        return flat.reshape(rows, columns)


def place(array: np.ndarray) -> int:
    """The address of an array's first element, in a third of the time of `array.ctypes`."""
    address: int = array.__array_interface__["data"][0]
    return address
