"""Times single passes of a loaded model: its forward on hand-made batches, nothing around it.

Keeps K and V in a store of its own, so that the engine's is never touched.
"""

from __future__ import annotations

import time

import numpy as np

from foreword.build import Built, make_store
from foreword.model.batch import Batch, Segment

_CHUNK = 256  # rows of a pass that fills the cache
_FARTHEST_PARENT = 4  # nodes of the measured trees hang on one of the last four


class Passes:
    """`room`: positions filled with K and V before anything is timed."""

    def __init__(self, built: Built, room: int) -> None:
        block = built.config.cache.block_size
        self._model = built.engine.parts.model
        self._kv = make_store(built.config, built.checkpoint, (room // block + 2) * block)
        random = np.random.default_rng(0)
        self._ids: list[int] = random.integers(0, built.vocab_size, room).tolist()
        self._slots = np.arange(1, room + 1, dtype=np.int64)
        self.prefill(room, _CHUNK)

    def decode(self, context: int) -> float:
        """Seconds of a pass of one row after `context` positions."""
        return self._timed([self._chain(context, context + 1)])

    def verify(self, width: int, context: int) -> float:
        """Seconds of a pass whose rows are the nodes of one sequence's tree, logits at each."""
        random = np.random.default_rng(width)
        parents = [-1]
        for node in range(1, width):
            parents.append(int(random.integers(max(0, node - _FARTHEST_PARENT), node)))
        end = context + width
        tokens, slots = tuple(self._ids[context:end]), self._slots[:end]
        return self._timed([Segment(tokens, tuple(parents), context, slots, tuple(range(width)))])

    def prefill(self, count: int, chunk: int) -> float:
        """Seconds of reading a prompt of `count` tokens in chunks, logits at its last token."""
        seconds = 0.0
        for start in range(0, count, chunk):
            end = min(start + chunk, count)
            seconds += self._timed([self._chain(start, end, logits=end == count)])
        return seconds

    def batch(self, sequences: int, context: int) -> float:
        """Seconds of a pass of one row for each of several sequences."""
        parts = []
        for number in range(sequences):
            first = number * (context + 1) % (len(self._slots) - context)
            slots = self._slots[first : first + context + 1]
            parts.append(Segment.chain(self._ids[first : first + 1], slots))
        return self._timed(parts)

    def _chain(self, start: int, end: int, logits: bool = True) -> Segment:
        return Segment.chain(self._ids[start:end], self._slots[:end], logits)

    def _timed(self, segments: list[Segment]) -> float:
        batch = Batch.of(segments)
        started = time.perf_counter()
        self._model.forward(batch, self._kv)
        return time.perf_counter() - started
