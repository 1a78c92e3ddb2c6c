"""A small decoder whose matrices are quantised in every way there is, side by side."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import gguf
import numpy as np
import torch
from rig import BASE, build, weights

from foreword.model.llama import Decoder
from foreword.model.weights.gguf_grouped import grouped
from foreword.model.weights.grouped import GroupedInt
from foreword.model.weights.quantize import int4, int8
from foreword.model.weights.words import grouped as from_zeros
from quantised_files import tame_blocks

WIDE = replace(
    BASE,
    hidden_size=256,
    intermediate_size=512,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    qkv_bias=True,
    mlp_bias=True,
    tied_head=False,
)
KINDS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "int8", "int4", "zeros4", "zeros8", "signed4",
)  # fmt: skip
PLACES = {  # layer, word in the name: how the matrix is held; "dense" = floats
    "embed_tokens": "Q6_K", "lm_head": "Q4_1",
    "0.self_attn.q": "Q4_K", "0.self_attn.k": "Q5_0", "0.self_attn.v": "Q6_K",
    "0.self_attn.o": "Q8_0", "0.mlp.gate": "Q4_1", "0.mlp.up": "Q5_K", "0.mlp.down": "Q3_K",
    "1.self_attn.q": "dense", "1.self_attn.k": "int8", "1.self_attn.v": "zeros4",
    "1.self_attn.o": "Q2_K", "1.mlp.gate": "dense", "1.mlp.up": "int4", "1.mlp.down": "int8",
}  # fmt: skip


def made(kind: str, weight: torch.Tensor, seed: int = 0) -> torch.Tensor | GroupedInt:
    """A matrix of this kind, as near to `weight` as the kind can be made here (K types: tame)."""
    shape = (weight.shape[0], weight.shape[1])
    random = torch.Generator().manual_seed(seed)
    if kind == "dense":
        return weight
    if kind in ("int8", "int4"):
        return {"int8": int8, "int4": int4}[kind](weight)
    if kind in ("zeros4", "zeros8", "signed4"):
        bits = int(kind[-1])
        groups = shape[1] // 64
        q = torch.randint(0, 1 << bits, shape, generator=random, dtype=torch.uint8)
        zero = torch.randint(1, 1 << bits, (shape[0], groups), generator=random, dtype=torch.uint8)
        scale = (torch.rand(shape[0], groups, generator=random) + 0.5) / (1 << bits)
        return from_zeros(q, scale.half(), None if kind == "signed4" else zero, bits, kind)
    if kind.endswith("_K"):
        return grouped(tame_blocks(kind, shape, seed).reshape(-1), kind, shape)
    raw = gguf.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind])
    return grouped(raw.reshape(-1), kind, shape)


@cache
def mixed() -> dict[str, Any]:
    """WIDE's tensors, held as PLACES says."""
    tensors: dict[str, Any] = dict(weights(WIDE))
    for number, (name, tensor) in enumerate(tensors.items()):
        kind = next((kind for place, kind in PLACES.items() if place in name), "dense")
        if tensor.dim() == 2:
            tensors[name] = made(kind, tensor, number)
    return tensors


def floats() -> dict[str, torch.Tensor]:
    """The same model with every matrix dequantised."""
    return {
        name: part.dequantize() if isinstance(part, GroupedInt) else part
        for name, part in mixed().items()
    }


@cache
def wide(numerics: str, backend: str = "torch", **options: Any) -> Decoder:
    """A shared decoder over `mixed()`; tests never change it."""
    tensors: Any = mixed() if numerics in ("a16", "a8") else floats()
    return build(WIDE, numerics, backend, tensors=tensors, **options)


def line_of(count: int, seed: int = 0) -> torch.Tensor:
    """One row of activations with an outlier, as real ones have."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(count)
    values[int(random.integers(count))] *= 20
    return torch.from_numpy(values.astype(np.float32))
