"""Decoders on the cpu backend, and its products alone, for every instruction set there is here."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from quantised_rig import WIDE, mixed
from rig import CONFIGS, rotary, weights

from foreword.kernels.cpu.backend import ISAS, CpuKernels, load_native
from foreword.model.config import ModelConfig
from foreword.model.llama import Decoder
from foreword.model.weights.grouped import GroupedInt

try:
    NATIVE: Any = load_native()
    HERE = [isa for isa in ISAS if NATIVE.has_isa(isa)]
except Exception:  # the extension is not built: every test that needs it is skipped
    NATIVE, HERE = None, []

needs_native = pytest.mark.skipif(NATIVE is None, reason="the cpu extension is not built")
every_isa = pytest.mark.parametrize("isa", HERE or ["none"])


def decoder_of(
    config: ModelConfig,
    numerics: str,
    isa: str,
    threads: int = 1,
    tensors: dict[str, Any] | None = None,
) -> Decoder:
    kernels = CpuKernels(config, numerics, rotary(config), threads, isa)
    return Decoder(config, kernels, (tensors or weights(config)).__getitem__)


@cache
def cpu(name: str, numerics: str, isa: str, threads: int = 1) -> Decoder:
    """A shared decoder: one of the rig's, or "quantised", which holds every quantised type."""
    if name == "quantised":
        return decoder_of(WIDE, numerics, isa, threads, mixed())
    return decoder_of(CONFIGS[name], numerics, isa, threads)


@cache
def kernels_of(numerics: str, isa: str, threads: int = 1) -> CpuKernels:
    return CpuKernels(WIDE, numerics, rotary(WIDE), threads, isa)


def pack(numerics: str, isa: str, weight: torch.Tensor | GroupedInt, bias: Any = None) -> Any:
    return kernels_of(numerics, isa)._packer.matrix(weight, bias)


def product(numerics: str, isa: str, packed: Any, x: torch.Tensor, columns: int) -> torch.Tensor:
    """float32 [rows, columns]."""
    kernels, x = kernels_of(numerics, isa), x.contiguous()
    out = torch.full((x.shape[0], columns), float("nan"))
    kernels.native.product(packed, isa, kernels._pool, len(x), x.data_ptr(), out.data_ptr())
    return out
