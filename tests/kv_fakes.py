"""For tests of kv/ and the scheduler: a pool of integers, and a pretend model that writes values.

The value of a row is a number made from everything the row may depend on: its own token and all
before it, the salt included. So a wrong slot, a stale row, a poisoned prefix or a bad move shows as
a wrong number.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreword.kv
from foreword.kv.pool import KVPool

STORES = sorted(
    path.stem
    for path in Path(foreword.kv.__file__).parent.glob("*.py")
    if hasattr(importlib.import_module(f"foreword.kv.{path.stem}"), "make")
)


def make_store(name: str, pool: Any, **options: Any) -> Any:
    return importlib.import_module(f"foreword.kv.{name}").make(pool, **options)


class IntegerPool:
    """One integer per slot instead of tensors; counts the rows it was asked to move."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.content = np.zeros(num_slots, dtype=np.int64)
        self.num_moved = 0

    def move(self, source: np.ndarray, destination: np.ndarray) -> None:
        assert (destination > 0).all()
        self.num_moved += len(source)
        self.content[destination] = self.content[source]

    def check(self) -> None:
        assert self.content[0] == 0, "slot 0 (null) was written"

    def write(self, slots: np.ndarray, values: SequenceOf[int]) -> None:
        self.content[slots] = values

    def read(self, slots: np.ndarray) -> list[int]:
        return self.content[slots].tolist()


class TensorPool(KVPool):
    """A real pool; value v of layer l is stored as the keys v + l and the values -v - l."""

    def __init__(self, num_slots: int, num_layers: int = 2) -> None:
        super().__init__(num_layers, num_slots, 2, 3, torch.float64)

    def write(self, slots: np.ndarray, values: SequenceOf[int]) -> None:
        rows = torch.tensor(values, dtype=self.dtype)[:, None, None]
        for layer in range(self.num_layers):
            self.keys[layer][torch.from_numpy(slots)] = rows + layer
            self.values[layer][torch.from_numpy(slots)] = -rows - layer

    def read(self, slots: np.ndarray) -> list[int]:
        rows = torch.from_numpy(slots)
        found = self.keys[0][rows][:, 0, 0]
        for layer in range(self.num_layers):
            expected = (found + layer)[:, None, None].expand(-1, 2, 3)
            assert torch.equal(self.keys[layer][rows], expected)
            assert torch.equal(self.values[layer][rows], -expected)
        return [int(value) for value in found]


def row_values(token_ids: SequenceOf[int], salt: str = "") -> list[int]:
    """What a pass writes for each of `token_ids`, from it and all before it; never zero."""
    values, value = [], zlib.crc32(salt.encode())
    for token in token_ids:
        value = zlib.crc32(b"%d" % token, value)
        values.append(1 + value)
    return values


class Writer:
    """Plays the model over a store, and remembers what each sequence must hold."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.held: dict[str, list[int]] = {}  # id -> content of the committed positions
        self.salts: dict[str, str] = {}

    def begin(self, name: str, token_ids: SequenceOf[int], salt: str = "") -> int:
        length: int = self.store.begin(name, token_ids, salt)
        assert length == self.store.length(name)
        self.held[name], self.salts[name] = list(token_ids[:length]), salt
        return length

    def run(
        self,
        name: str,
        tokens: SequenceOf[int],
        path: SequenceOf[int] | None = None,
        parents: SequenceOf[int] | None = None,
    ) -> bool:
        """One pass over `tokens` (a chain unless `parents` are given); rows `path` (all) stay."""
        if not self.store.reserve(name, len(tokens)):
            return False
        self.write(name, tokens, parents)
        self.commit(name, tokens, range(len(tokens)) if path is None else path)
        return True

    def write(
        self, name: str, tokens: SequenceOf[int], parents: SequenceOf[int] | None = None
    ) -> None:
        parents = range(-1, len(tokens) - 1) if parents is None else parents
        contexts: list[list[int]] = []
        for token, parent in zip(tokens, parents, strict=True):
            contexts.append([*(contexts[parent] if parent >= 0 else self.held[name]), token])
        slots = self.store.slots(name)[len(self.held[name]) :][: len(tokens)]
        assert len(set(slots.tolist())) == len(tokens)
        self.store.pool.write(slots, [row_values(ids, self.salts[name])[-1] for ids in contexts])

    def commit(self, name: str, tokens: SequenceOf[int], path: SequenceOf[int]) -> None:
        self.held[name] += [tokens[row] for row in path]
        self.store.commit(name, list(path), self.held[name])

    def truncate(self, name: str, length: int) -> None:
        self.store.truncate(name, length)
        del self.held[name][length:]

    def free(self, name: str) -> None:
        self.store.free(name)
        del self.held[name], self.salts[name]

    def keep(self, name: str) -> None:
        self.store.keep(name, self.held[name])
        del self.held[name], self.salts[name]

    def check(self) -> None:
        """The store's own accounting, and every value where it must be."""
        self.store.check()
        for name, ids in self.held.items():
            assert self.store.length(name) == len(ids)
            slots = self.store.slots(name)[: len(ids)]
            assert slots.dtype == np.int64
            assert 0 not in slots, f"{name} holds the null slot"
            expected = row_values(ids, self.salts[name])
            assert self.store.pool.read(slots) == expected, f"{name} at {slots.tolist()}"
