"""Small random decoders in memory, real KV pools, and ways to feed the same tokens differently.

A *feed* writes one sequence's tokens through `Decoder.forward` in some arrangement and returns the
logits of every position, so that arrangements can be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from foreword.kernels.ops import RotaryTable
from foreword.kernels.reference import ReferenceKernels
from foreword.kernels.torch import TorchKernels
from foreword.kv.pool import KVPool
from foreword.model.batch import Batch, Segment
from foreword.model.config import ModelConfig, RopeConfig
from foreword.model.llama import Decoder
from foreword.model.rope import inverse_frequencies
from foreword.model.weights.check import expected_shapes

VOCAB, SLOTS = 96, 512
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

BASE = ModelConfig(
    architecture="llama",
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=144,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    norm_eps=1e-5,
    max_position=512,
    rope=RopeConfig(),
    tied_head=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    windows=(None, None),
)
CONFIGS = {
    "llama": BASE,
    "biased": replace(BASE, qkv_bias=True, output_bias=True, mlp_bias=True, num_kv_heads=1),
    "mistral": replace(BASE, architecture="mistral", windows=(8, 8), num_kv_heads=4),
    "mixed": replace(BASE, architecture="qwen2", qkv_bias=True, windows=(None, 8)),
    "qwen2": replace(BASE, architecture="qwen2", qkv_bias=True, hidden_size=48, num_heads=3,
                     num_kv_heads=1),
    "qwen3": replace(BASE, architecture="qwen3", qk_norm=True, tied_head=False, head_dim=32),
}  # fmt: skip


@cache
def weights(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random float32 tensors under their Hugging Face names; every value fits bfloat16."""
    random = np.random.default_rng(seed)
    made = {}
    for name, shape in expected_shapes(config).items():
        norm = name.endswith("norm.weight")
        values = random.standard_normal(shape) * (0.1 if norm else 0.3) + (1.0 if norm else 0.0)
        made[name] = torch.from_numpy(values.astype(np.float32)).bfloat16().float()
    return made


def rotary(config: ModelConfig) -> RotaryTable:
    frequencies = inverse_frequencies(config.rope, config.head_dim, config.max_position)
    return RotaryTable.build(*frequencies, config.max_position)


def build(
    config: ModelConfig,
    numerics: str = "float32",
    backend: str = "torch",
    threads: int = 1,
    partition: int = 16,
    compute: torch.dtype = torch.float32,
    tensors: dict[str, torch.Tensor] | None = None,
) -> Decoder:
    """A decoder on `weights(config)`, or on `tensors`."""
    table, kernels = rotary(config), None
    if backend == "torch":
        kernels = TorchKernels(config, numerics, table, "cpu", threads, partition)
    else:
        kernels = ReferenceKernels(config, numerics, table, compute, partition)
    return Decoder(config, kernels, (tensors or weights(config)).__getitem__)


@cache
def decoder(
    name: str, numerics: str = "float32", backend: str = "torch", **options: Any
) -> Decoder:
    """A shared decoder; tests never change it."""
    return build(CONFIGS[name], numerics, backend, **options)


def store(model: Decoder, dtype: torch.dtype | None = None, slots: int = SLOTS) -> Any:
    """A KV store as the model sees it: a pool. dtype: that of the numerics unless given."""
    config = model.config
    shape = (config.num_layers, slots, config.num_kv_heads, config.head_dim)
    return SimpleNamespace(
        pool=KVPool(*shape, dtype or DTYPES.get(model.kernels.numerics, torch.bfloat16))
    )


def ids_of(count: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, count).tolist()


def line(ids: Sequence[int], slots: np.ndarray, start: int, stop: int) -> Segment:
    """Tokens [start, stop) of a sequence as a chain, logits of every row."""
    rows = stop - start
    parents = tuple(range(-1, rows - 1))
    return Segment(tuple(ids[start:stop]), parents, start, slots[:stop], tuple(range(rows)))


def straight(count: int, first: int = 1) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.int64)


def in_blocks(
    model: Decoder, ids: Sequence[int], sizes: Sequence[int], kv: Any = None, slots: Any = None
) -> np.ndarray:
    """Feed `ids` in chunks, cycling through `sizes`; float32 [len(ids), vocab]."""
    kv = store(model) if kv is None else kv
    slots = straight(len(ids)) if slots is None else slots
    out, start, turn = [], 0, 0
    while start < len(ids):
        stop = min(start + sizes[turn % len(sizes)], len(ids))
        out.append(model.forward(Batch.of([line(ids, slots, start, stop)]), kv))
        start, turn = stop, turn + 1
    return np.concatenate(out)


def one_by_one(model: Decoder, ids: Sequence[int], kv: Any = None) -> np.ndarray:
    """Plain decoding: the definition everything else is compared with."""
    return in_blocks(model, ids, [1], kv)


def one_pass(model: Decoder, ids: Sequence[int], kv: Any = None) -> np.ndarray:
    return in_blocks(model, ids, [len(ids)], kv)


def bits(values: np.ndarray | torch.Tensor) -> np.ndarray:
    array = np.ascontiguousarray(torch.as_tensor(values).float().numpy())
    return array.view(np.uint32)


def assert_same_bits(got: Any, wanted: Any, what: str = "") -> None:
    mine, theirs = bits(got), bits(wanted)
    assert mine.shape == theirs.shape, (mine.shape, theirs.shape)
    moved = np.argwhere(mine != theirs)
    assert len(moved) == 0, f"{what}: {len(moved)} of {mine.size} values moved, first {moved[0]}"


def stages(model: Decoder, batch: Batch, kv: Any) -> Iterator[tuple[str, list[torch.Tensor]]]:
    """Run the ops one by one; after each: its name and the rows it made, one tensor a row."""
    kernels, rows = model.kernels, batch.num_rows

    def split(hidden: Any) -> list[torch.Tensor]:
        if isinstance(hidden, list):
            return [row.clone() for row in hidden]
        width = hidden.shape[1] * hidden.shape[2] if hidden.dim() == 3 else hidden.shape[-1]
        if hidden.dim() == 3 and hidden.shape[0] * 16 >= rows and hidden.shape[1] == 16:
            width = hidden.shape[2]
        return list(hidden.reshape(-1, width)[:rows].clone())

    with kernels.guard():
        step = kernels.start(batch)
        hidden = kernels.embed(model._embedding, step)
        yield "embed", split(hidden)
        for index, layer in enumerate(model._layers):
            keys, values = kv.pool.keys[index], kv.pool.values[index]
            query = kernels.attend_input(layer, hidden, step, keys, values)
            yield f"attend_input {index}", split(query)
            yield f"key {index}", list(keys[torch.from_numpy(batch.slots)].clone())
            yield f"value {index}", list(values[torch.from_numpy(batch.slots)].clone())
            context = kernels.attend(layer, query, step, keys, values)
            yield f"attend {index}", split(context)
            hidden = kernels.attend_output(layer, context, hidden)
            yield f"attend_output {index}", split(hidden)
            hidden = kernels.mlp(layer, hidden)
            yield f"mlp {index}", split(hidden)
        logits = kernels.logits(model._head, hidden, step)
        yield "logits", list(torch.from_numpy(logits))
