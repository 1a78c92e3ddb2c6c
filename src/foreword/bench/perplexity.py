"""How well a model predicts a text: exp of the mean negative log-probability per token.

The text is encoded once and its first `tokens` ids are cut into windows of `window`. Each window is
read from an empty context, and every id of it but the first is predicted from the ids before it in
the window. The last window may be shorter. Log-softmax in float64. No sampling is involved, so two
numerics modes are compared on the very same ids.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foreword.bench.rounds import Progress
from foreword.build import Built, make_store
from foreword.errors import ConfigError
from foreword.model.batch import Batch, Segment

_ROWS = 64  # of a pass: as many rows of logits are held at a time


@dataclass(frozen=True, slots=True)
class Score:
    """tokens: ids predicted. seconds: of everything after loading."""

    perplexity: float
    nats_per_token: float
    tokens: int
    windows: int
    seconds: float


def score(built: Built, ids: Sequence[int], window: int, progress: Progress | None = None) -> Score:
    """Raises ConfigError when a window does not fit the model or nothing is left to predict."""
    if not 2 <= window <= built.context:
        raise ConfigError(
            f"--window must be 2 to the model's context {built.context}, got {window}"
        )
    if len(ids) < 2:
        raise ConfigError(f"{len(ids)} tokens leave nothing to predict; give a longer text")
    block = built.config.cache.block_size
    store = make_store(built.config, built.checkpoint, (window // block + 2) * block)
    started = time.perf_counter()
    total, count, windows = 0.0, 0, 0
    for start in range(0, len(ids), window):
        piece = ids[start : start + window]
        if len(piece) < 2:
            break
        for at in range(0, len(piece) - 1, _ROWS):
            end = min(at + _ROWS, len(piece) - 1)
            slots = np.arange(1, end + 1, dtype=np.int64)
            chain = tuple(range(-1, end - at - 1))
            rows = tuple(range(end - at))
            segment = Segment(tuple(piece[at:end]), chain, at, slots, rows)
            logits = built.engine.parts.model.forward(Batch.of([segment]), store)
            total += _nats(logits, piece[at + 1 : end + 1])
            count += end - at
            if progress is not None:
                progress("reading", start + end, len(ids))
        windows += 1
    mean = total / count
    return Score(float(np.exp(mean)), mean, count, windows, time.perf_counter() - started)


def _nats(logits: np.ndarray, targets: Sequence[int]) -> float:
    """Sum of -log softmax(logits)[target]; logits float32 [rows, vocab]."""
    values = logits.astype(np.float64)
    values -= values.max(axis=1, keepdims=True)
    chosen = values[np.arange(len(targets)), np.asarray(targets)]
    return float((np.log(np.exp(values).sum(axis=1)) - chosen).sum())
