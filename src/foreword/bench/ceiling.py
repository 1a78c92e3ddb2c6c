"""What bounds a step: the bytes it must read, and the operations of its products.

Bytes are those of the format that is run, however a backend lays them out: of a quantised matrix
the file's own bytes, and what an unquantised one takes in the numerics mode. An embedding apart
from the head is left out: a step reads one of its rows. K and V come on top, per position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foreword.build import Built
from foreword.kernels.ops import QUANTISED
from foreword.model.config import ModelConfig
from foreword.model.weights.checkpoint import Checkpoint

_EMBEDDING = "model.embed_tokens.weight"

# The matrix rate a numerics mode is measured against; float32 has none.
MATRIX_KINDS = {"bfloat16": "bfloat16", "a16": "bfloat16", "a8": "int8"}


@dataclass(frozen=True, slots=True)
class Demand:
    """Of one model as it is run."""

    weight_bytes: int  # read by every pass
    kv_bytes: int  # per position of context
    row_operations: int  # of the layers' products, for one row
    head_operations: int  # of the LM head, for one row of logits

    def bytes_at(self, context: int) -> int:
        """What a pass reads whose sequence has `context` positions."""
        return self.weight_bytes + context * self.kv_bytes

    def operations(self, rows: int, logit_rows: int) -> int:
        return rows * self.row_operations + logit_rows * self.head_operations


def demand(built: Built) -> Demand:
    config = built.checkpoint.config
    pool = built.engine.parts.kv.pool
    return Demand(
        weight_bytes=weight_bytes(built.checkpoint, built.numerics),
        kv_bytes=pool.num_bytes // pool.num_slots,
        row_operations=_row_operations(config),
        head_operations=2 * config.hidden_size * built.vocab_size,
    )


def weight_bytes(checkpoint: Checkpoint, numerics: str) -> int:
    """Bytes of weights that one pass must read."""
    total = 0
    for name in checkpoint.names():
        if name == _EMBEDDING and not checkpoint.config.tied_head:
            continue
        shape = checkpoint.shape(name)
        if numerics in QUANTISED and checkpoint.is_grouped(name):
            total += checkpoint.num_bytes(name)
        elif len(shape) < 2:
            total += math.prod(shape) * 4
        else:
            wide = numerics == "float32"
            total += math.prod(shape) * (checkpoint.dtype(name).itemsize if wide else 2)
    return total


def _row_operations(config: ModelConfig) -> int:
    """A multiplication and an addition for each weight of the layers."""
    queries = config.num_heads * config.head_dim
    cached = config.num_kv_heads * config.head_dim
    attention = config.hidden_size * (2 * queries + 2 * cached)
    return 2 * config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
