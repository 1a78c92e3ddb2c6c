"""Logits of a pass keep their content for whoever still holds them, in whole or in part."""

from __future__ import annotations

import numpy as np

from foreword.kernels.cpu.room import Room, place


def test_memory_is_used_again_once_nobody_looks() -> None:
    room = Room()
    first = room.take(4, 100)
    assert (first.shape, first.dtype) == ((4, 100), np.float32)
    where = place(first)
    assert where == first.ctypes.data
    del first
    assert place(room.take(2, 100)) == where


def test_what_is_held_is_not_written_over() -> None:
    """A row, a slice of a slice and a transpose each keep the pass they came from."""
    room = Room()
    held = []
    for number in range(5):
        logits = room.take(3, 50)
        logits[:] = number
        held.append([logits[1], logits[1:][:, 5:9], logits.T][number % 3])
        del logits
    for number, part in enumerate(held):
        assert (part == number).all()
    assert len({place(part) for part in held}) == 5


def test_a_larger_pass_gets_larger_memory() -> None:
    room = Room()
    room.take(1, 10)[:] = 1.0
    assert room.take(8, 10).shape == (8, 10)
    assert room.take(0, 10).shape == (0, 10)
