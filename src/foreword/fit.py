"""How much memory an engine takes, and what fits: positions of a request, slots of the KV cache.

Every error comes before anything is loaded, and names the option to change.
"""

from __future__ import annotations

import math

from foreword.config import EngineConfig
from foreword.errors import ConfigError
from foreword.kernels.ops import QUANTISED
from foreword.kv.pool import FORMATS, available_bytes, bytes_per_slot
from foreword.model.config import ModelConfig
from foreword.model.weights.checkpoint import Checkpoint
from foreword.model.weights.memory import require_memory

TILE_ROWS = 16  # rows that ride in one matrix tile
KV_SHARE = 0.25  # of the available memory, when --kv-cache-memory does not say


def context_of(config: EngineConfig, shape: ModelConfig) -> int:
    """Positions a request may use."""
    asked = config.max_model_len
    if asked is not None and asked > shape.max_position:
        raise ConfigError(
            f"max_model_len {asked} is above the model's {shape.max_position}; lower it"
        )
    return asked or shape.max_position


def kv_format(config: EngineConfig) -> str:
    """The one asked for; auto: float32 in float32 mode, else bfloat16."""
    if config.cache.dtype != "auto":
        return config.cache.dtype
    return "float32" if config.numerics == "float32" else "bfloat16"


def slots_of(
    config: EngineConfig, context: int, checkpoints: list[Checkpoint], shared: bool
) -> int:
    """KV slots that fit beside the weights; ConfigError or WeightsError if one request does not."""
    block = config.cache.block_size
    budget = config.speculative.node_budget
    drafts = 2 * TILE_ROWS if budget is None else budget
    pages = -(-(context + drafts) // block) + 1
    least, most = (pages + 1) * block, (pages * config.scheduler.max_num_seqs + 1) * block
    per_slot = sum(
        bytes_per_slot(
            one.config.num_layers,
            one.config.num_kv_heads,
            one.config.head_dim,
            FORMATS[kv_format(config)],
        )
        for one in checkpoints
    )
    available = available_bytes(config.device)
    if config.cache.memory is None:
        share = most if available is None else int(available * KV_SHARE) // per_slot
        slots = max(least, min(most, share // block * block))
    else:
        slots = config.cache.memory // per_slot // block * block
        if slots < least:
            raise ConfigError(
                f"kv_cache_memory {config.cache.memory} bytes holds {slots} positions, one request "
                f"of {context} needs {least * per_slot} bytes; raise it or lower max_model_len"
            )
    weights = sum(weight_bytes(config, one) for one in checkpoints[: 1 if shared else None])
    what = f"{config.model} with a KV cache of {slots} positions"
    require_memory(weights + slots * per_slot, available, what)
    return slots


def weight_bytes(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes of the packed weights. Backend cpu: what the file takes, at most an eighth more where
    a type is widened; floats in the mode's dtype, in float32 mode as they are stored; a tied head
    is no copy. The others: each in the mode's dtype, the LM head a float32 copy; matrices that stay
    quantised one byte a number and at most half a byte of scales, the head a copy."""
    if config.backend == "cpu":
        return sum(_packed_bytes(config, checkpoint, name) for name in checkpoint.names())
    size = 4 if config.numerics == "float32" else 2
    shape, total = checkpoint.config, 0
    head = "model.embed_tokens.weight" if shape.tied_head else "lm_head.weight"
    for name in checkpoint.names():
        numbers = math.prod(checkpoint.shape(name))
        grouped = config.numerics in QUANTISED and checkpoint.is_grouped(name)
        total += numbers * 3 // 2 if grouped else numbers * size
        if name == head:
            total += numbers * 3 // 2 if grouped else numbers * 4
    return total


def _packed_bytes(config: EngineConfig, checkpoint: Checkpoint, name: str) -> int:
    if config.numerics in QUANTISED and checkpoint.is_grouped(name):
        return checkpoint.num_bytes(name) * 9 // 8
    numbers = math.prod(checkpoint.shape(name))
    if config.numerics == "float32" or len(checkpoint.shape(name)) == 1:
        return numbers * (4 if checkpoint.is_grouped(name) else checkpoint.dtype(name).itemsize)
    return numbers * 2
