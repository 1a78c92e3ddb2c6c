"""The cpu backend: weights packed once at load, then one native call per pass.

Numbers go to the extension as addresses and sizes. Every pass computes each row in a sequence of
operations fixed by the weights and the instruction set (native/pass.cpp); how many rows or threads
there are only decides who computes what.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence as SequenceOf
from collections.abc import Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foreword.config import NUMERICS
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.packing import FLAT, Packer
from foreword.kernels.cpu.room import Room, place
from foreword.kernels.cpu.sampling import NativeRows
from foreword.kernels.guard import pinned
from foreword.kernels.ops import (
    NO_ADAPTERS,
    PROJECTIONS,
    AdapterLayer,
    Adapters,
    LayerWeights,
    Projection,
    RotaryTable,
    Weight,
    check_config,
)
from foreword.model.batch import Batch
from foreword.model.config import ModelConfig

ISAS = ("portable", "avx2", "avx512", "amx")  # worst first
KV_FORMATS = (torch.float32, torch.bfloat16, torch.int8)  # in the order of native/plan.h


@dataclass(frozen=True, slots=True)
class Layer:
    """Native weights, and norms as float32."""

    attention_norm: Tensor
    query: Any
    key: Any
    value: Any
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Any
    mlp_norm: Tensor
    gate: Any
    up: Any
    down: Any
    window: int


@dataclass(frozen=True, slots=True)
class Head:
    norm: Tensor
    weight: Any


class CpuKernels:
    """Implements ops.WholePass. `numerics` and `isa` decide bits, `threads` never does."""

    name = "cpu"

    def __init__(
        self,
        config: ModelConfig,
        numerics: str,
        rotary: RotaryTable,
        threads: int = 1,
        isa: str | None = None,
    ) -> None:
        check_config(config)
        if numerics not in NUMERICS:
            raise KernelUnavailable(f"backend cpu has no numerics {numerics!r}")
        self.native = load_native()
        self.isa = choose_isa(self.native, isa)
        self.config = config
        self.numerics = numerics
        self.rounding = torch.float32 if numerics == "float32" else torch.bfloat16
        self._pool: Any = self.native.Pool(threads)
        self._packer = Packer(self.native, numerics, self._pool)
        self._cos = rotary.cos.contiguous()
        self._sin = rotary.sin.contiguous()
        self._network: Any = None
        self._vocab = config.vocab_size
        self._room = Room()
        self._cache: tuple[list[Tensor], list[Tensor], list[int], list[int]] = [], [], [], []

    def guard(self) -> AbstractContextManager[None]:
        return pinned(torch.device("cpu"))

    def step_guard(self) -> AbstractContextManager[None]:
        """Every pass pins its own arithmetic; around it torch only moves bytes."""
        return np.errstate(all="ignore")

    def close(self) -> None:
        self._pool = self._packer.pool = self._network = None

    def set_threads(self, threads: int) -> None:
        self._open_pool()
        self._pool = self._packer.pool = self.native.Pool(threads)

    def _open_pool(self) -> Any:
        if self._pool is None:
            raise KernelUnavailable("this model is closed; load it again to use it")
        return self._pool

    def row_ops(self) -> NativeRows:
        """Sampling and row operations on this backend's threads."""
        return NativeRows(self.native, self._open_pool, self.isa)

    @property
    def num_bytes(self) -> int:
        """Bytes of all packed weights."""
        return int(self._packer.store.num_bytes)

    # -- load ---------------------------------------------------------------------------------

    def pack_embedding(self, weight: Weight) -> Any:
        return self._packer.matrix(weight)

    def pack_layer(self, weights: LayerWeights) -> Layer:
        def pack(part: Projection) -> Any:
            return self._packer.matrix(part.weight, part.bias)

        return Layer(
            attention_norm=_vector(weights.attention_norm),
            query=pack(weights.query),
            key=pack(weights.key),
            value=pack(weights.value),
            query_norm=None if weights.query_norm is None else _vector(weights.query_norm),
            key_norm=None if weights.key_norm is None else _vector(weights.key_norm),
            output=pack(weights.output),
            mlp_norm=_vector(weights.mlp_norm),
            gate=pack(weights.gate),
            up=pack(weights.up),
            down=pack(weights.down),
            window=weights.window or 0,
        )

    def pack_head(self, norm: Tensor, weight: Weight) -> Head:
        self._vocab = weight.shape[0]
        return Head(_vector(norm), self._packer.matrix(weight))

    def pack_tied_head(self, norm: Tensor, embedding: Any, rows: int) -> Head:
        """The head over the embedding's own memory, its first `rows` rows."""
        self._vocab = rows
        return Head(_vector(norm), embedding.narrow(rows))

    def pack_adapter(self, layers: SequenceOf[AdapterLayer]) -> Any:
        """A native Adapter, which holds copies."""
        packed = self.native.Adapter(len(layers))
        for number, layer in enumerate(layers):
            for name, part in layer.items():
                down, up = part.down.contiguous(), part.up.contiguous()
                packed.set(
                    number,
                    PROJECTIONS.index(name),
                    down.shape[0],
                    down.shape[1],
                    up.shape[0],
                    part.scale,
                    FLAT[down.dtype],
                    down.data_ptr(),
                    FLAT[up.dtype],
                    up.data_ptr(),
                )
        return packed

    def _assemble(self, embedding: Any, layers: list[Layer], head: Head) -> Any:
        config = self.config
        network = self.native.Network(
            self._packer.store,
            config.hidden_size,
            config.intermediate_size,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.norm_eps,
        )
        for layer in layers:
            network.add_layer(
                layer.attention_norm.data_ptr(),
                layer.query,
                layer.key,
                layer.value,
                _address(layer.query_norm),
                _address(layer.key_norm),
                layer.output,
                layer.mlp_norm.data_ptr(),
                layer.gate,
                layer.up,
                layer.down,
                layer.window,
            )
        network.set_ends(
            embedding,
            head.norm.data_ptr(),
            head.weight,
            self._cos.data_ptr(),
            self._sin.data_ptr(),
        )
        return network

    # -- one pass -------------------------------------------------------------------------------

    def run(
        self,
        embedding: Any,
        layers: list[Layer],
        head: Head,
        batch: Batch,
        keys: list[Tensor],
        values: list[Tensor],
        skip: Set[int] = frozenset(),
        adapters: Adapters = NO_ADAPTERS,
    ) -> np.ndarray:
        """The whole pass: float32 [len(logit_rows), vocab], K and V written to the pool."""
        pool = self._open_pool()
        if self._network is None:
            self._network = self._assemble(embedding, layers, head)
        tokens = batch.token_ids.tolist()
        if tokens and not 0 <= min(tokens) <= max(tokens) < len(self):
            raise IndexError(f"token ids must lie in [0, {len(self)})")
        wanted = len(batch.logit_rows)
        logits = self._room.take(wanted, self._vocab)
        key_addresses, value_addresses = self._addresses(keys, values)
        held: list[np.ndarray] = []  # alive until the call is over
        segments, first = [], 0
        named = [part.adapter for part in batch.segments]
        used = [None if name is None else adapters[name] for name in named] if any(named) else []
        for part in batch.segments:
            assert part.slots.dtype == np.int64
            parents = np.asarray(part.parents, dtype=np.int32)
            slots = np.ascontiguousarray(part.slots)
            held += [parents, slots]
            segments += [first, len(parents), part.cached, place(slots), place(parents)]
            first += len(parents)
        self._network.run(
            self.isa,
            pool,
            batch.num_rows,
            place(batch.token_ids),
            place(batch.positions),
            place(batch.slots),
            wanted,
            place(batch.logit_rows),
            segments,
            key_addresses,
            value_addresses,
            KV_FORMATS.index(keys[0].dtype),
            place(logits),
            sorted(skip),
            used,
        )
        return logits

    def _addresses(self, keys: list[Tensor], values: list[Tensor]) -> tuple[list[int], list[int]]:
        """Of each layer's keys and values. A pool's lists stay as they are, so they are kept."""
        if self._cache[0] is not keys or self._cache[1] is not values:
            addresses = [part.data_ptr() for part in keys], [part.data_ptr() for part in values]
            self._cache = keys, values, *addresses
        return self._cache[2], self._cache[3]

    def __len__(self) -> int:
        """Rows of the embedding."""
        return self.config.vocab_size


def _vector(weight: Tensor) -> Tensor:
    return weight.float().contiguous()


def _address(part: Tensor | None) -> int:
    return 0 if part is None else part.data_ptr()


def load_native() -> Any:
    """The built extension, or KernelUnavailable that says how to get it."""
    try:
        return importlib.import_module("foreword.kernels.cpu._native")
    except ImportError as error:
        raise KernelUnavailable(
            "backend cpu needs its compiled extension, which is not built; install a C++ compiler "
            "(Debian: g++) and run `pip install .` in the source folder, or use --backend torch"
        ) from error


def choose_isa(native: Any, asked: str | None) -> str:
    """The instruction set to use: the best there is, or `asked` if this machine has it."""
    if asked is None:
        return str(native.best_isa())
    if asked not in ISAS:
        raise KernelUnavailable(f"no instruction set {asked!r}; there is: {', '.join(ISAS)}")
    if not native.has_isa(asked):
        raise KernelUnavailable(
            f"this machine has no {asked}; its best is {native.best_isa()}, leave --isa out"
        )
    return asked


def native_rows(isa: str | None = None) -> NativeRows:
    """Row operations on the caller's thread alone, for other backends. KernelUnavailable without
    the extension."""
    native = load_native()
    pool = native.Pool(1)
    return NativeRows(native, lambda: pool, choose_isa(native, isa))


def make(
    config: ModelConfig,
    numerics: str,
    rotary: RotaryTable,
    device: str = "cpu",
    threads: int = 1,
    isa: str | None = None,
) -> CpuKernels:
    if device != "cpu":
        raise KernelUnavailable(f"backend cpu runs on cpu only, not {device!r}")
    return CpuKernels(config, numerics, rotary, threads, isa)
