"""The target's own bigrams: what it would say after each single token, a start for a cold table.

Idea: N-Grammys (arXiv 2411.03786). Every token is a child of one beginning-of-sequence token, so a
pass asks about `ROWS` tokens at once. A table is made once per model and kept in the cache folder,
under a name that is a hash of the checkpoint's fingerprint and numerics. Making it is bounded in
time: vocabularies are in order of their merges, frequent tokens first, so a table that stops early
knows the tokens that matter; the next start goes on from there. Hints only: no token depends on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from foreword.machine import cache_dir
from foreword.model.batch import Batch, Segment
from foreword.protocols import KVStore, Model, RowOps

log = logging.getLogger(__name__)

ROWS = 240  # tokens asked about in one pass
WIDTH = 16  # ids kept for each
FORMAT = 1
UNHURRIED = 0.5  # seconds; what took less is made anew rather than kept

Progress = Callable[[str, int, int], None]  # (what, done, total)


@dataclass(slots=True)
class Bigrams:
    """ids int32 [known, WIDTH], logits float32 [known, WIDTH], best first, of tokens 0 .. known."""

    ids: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]

    @property
    def known(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Source:
    """Where bigrams come from. `begin`: the token before, if the vocabulary has one. `store`: an
    empty store for `ROWS` + 1 rows. `identity`: fingerprint and numerics of the model. `guard`
    pins host switches around a pass."""

    model: Model
    store: Callable[[], KVStore]
    row_ops: RowOps
    begin: int | None
    identity: str
    guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    progress: Progress | None = None

    def load(self, seconds: float) -> Bigrams:
        """The kept table, completed for `seconds` at most."""
        path = cache_dir() / "bigrams" / f"{hashlib.sha256(self.identity.encode()).hexdigest()}.npz"
        table = read(path, self.model.vocab_size)
        started = time.monotonic()
        grown = self.grow(table, lambda: time.monotonic() - started >= seconds)
        if grown.known > table.known and time.monotonic() - started >= UNHURRIED:
            with contextlib.suppress(OSError):  # a read-only cache costs the next start some time
                write(path, grown)
        return grown

    def grow(self, table: Bigrams, late: Callable[[], bool]) -> Bigrams:
        """Ask the model about further tokens until all are known, or `late` after a pass."""
        size, width = self.model.vocab_size, min(WIDTH, self.model.vocab_size)
        ids, logits, known = [table.ids], [table.logits], table.known
        if known == size:
            return table
        store = self.store()
        while known < size:
            rows = self._ask(store, range(known, min(known + ROWS, size)))
            best, values = self.row_ops.top_k(rows, width)
            ids.append(np.pad(best, ((0, 0), (0, WIDTH - width))))
            logits.append(np.pad(values, ((0, 0), (0, WIDTH - width)), constant_values=-np.inf))
            known += len(rows)
            if self.progress is not None:
                self.progress("learning bigrams (once per model)", known, size)
            if late():
                break
        return Bigrams(np.concatenate(ids), np.concatenate(logits))

    def _ask(self, store: KVStore, tokens: range) -> np.ndarray:
        """float32 [tokens, vocab]: the model's logits after `begin` and each of the tokens."""
        first = () if self.begin is None else (self.begin,)
        parent = len(first) - 1
        count = len(first) + len(tokens)
        store.begin("bigrams", [*first, *tokens])
        assert store.reserve("bigrams", count), "a store for one pass"
        slots = store.slots("bigrams")
        parents = (*[-1] * len(first), *[parent] * len(tokens))
        wanted = tuple(range(len(first), count))
        segment = Segment((*first, *tokens), parents, 0, slots, wanted)
        with self.guard():
            rows = self.model.forward(Batch.of([segment]), store)
        store.free("bigrams")
        return rows


def contiguous(table: Bigrams) -> Bigrams:
    """The same, in the order compiled loops read it."""
    ids = np.ascontiguousarray(table.ids, np.int32)
    return Bigrams(ids, np.ascontiguousarray(table.logits, np.float32))


def empty() -> Bigrams:
    return Bigrams(np.zeros((0, WIDTH), np.int32), np.zeros((0, WIDTH), np.float32))


def read(path: Path, vocab_size: int) -> Bigrams:
    """The table kept at `path`; an empty one where there is none, or none that can be used."""
    if not path.exists():
        return empty()
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            table = Bigrams(file["ids"], file["logits"])
            sound = int(file["format"]) == FORMAT
        shape = (table.known, WIDTH)
        sound = sound and table.ids.shape == shape and table.logits.shape == shape
        sound = sound and table.ids.dtype == np.int32 and table.logits.dtype == np.float32
        sound = sound and table.known <= vocab_size
        sound = sound and not (table.known and not 0 <= table.ids.min() <= table.ids.max())
        sound = sound and not (table.known and table.ids.max() >= vocab_size)
        sound = sound and not np.isnan(table.logits).any()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        sound = False
    if not sound:
        log.warning("%s is damaged; the bigrams are learned again", path)
        return empty()
    return table


def write(path: Path, table: Bigrams) -> None:
    """Written aside and renamed, so that nobody reads half a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as file:
        np.savez(file, ids=table.ids, logits=table.logits, format=np.int64(FORMAT))
    os.replace(file.name, path)
