"""The ops on stock PyTorch: every op on tiles of TILE rows, one thread a tile, on any device.

float32: weights, products and residual in float32. bfloat16: weights and the inputs of products are
bfloat16 (stock products round their result to bfloat16, too); norms, rotary, softmax, residual and
logits are float32, the LM head holding its bfloat16 values widened.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import silu

from foreword.errors import KernelUnavailable
from foreword.kernels.guard import pinned
from foreword.kernels.ops import (
    LayerWeights,
    Projection,
    RotaryTable,
    check_config,
    require_device,
)
from foreword.kernels.torch.attention import attend
from foreword.kernels.torch.check import verify_pieces
from foreword.kernels.torch.linear import (
    TILE,
    Blocks,
    column_blocks,
    product,
    tasks,
    to_tiles,
    verify_blocks,
)
from foreword.kernels.torch.pieces import Pieces, plan_pieces
from foreword.kernels.torch.workers import Workers
from foreword.model.batch import Batch
from foreword.model.config import ModelConfig

PARTITION = 128  # keys in an attention partition


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Tensor
    qkv: Blocks
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Blocks
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: tuple[Tensor, ...]  # [2 * block, hidden]: a block of gate rows, then of up rows
    gate_up_bias: tuple[Tensor, ...] | None
    down: Blocks
    down_bias: Tensor | None
    window: int | None


@dataclass(frozen=True, slots=True)
class Head:
    norm: Tensor
    weight: Blocks


@dataclass(slots=True)
class Step:
    """Index tables of one pass."""

    batch: Batch
    token_ids: Tensor  # [rows]
    cos: Tensor  # [tiles, TILE, 1, head_dim / 2]
    sin: Tensor
    slots: Tensor  # [rows]
    pieces: dict[int | None, Pieces] = field(default_factory=dict)  # by window


class TorchKernels:
    """Implements ops.Kernels. `partition` and `numerics` decide bits, `threads` never does."""

    name = "torch"

    def __init__(
        self,
        config: ModelConfig,
        numerics: str,
        rotary: RotaryTable,
        device: str = "cpu",
        threads: int = 1,
        partition: int = PARTITION,
    ) -> None:
        check_config(config)
        if numerics not in ("float32", "bfloat16"):
            raise KernelUnavailable(f"backend torch has no numerics {numerics!r}")
        self.config = config
        self.numerics = numerics
        self.device = require_device(device)
        self.partition = partition
        self.dtype = torch.float32 if numerics == "float32" else torch.bfloat16
        self.workers = Workers(threads if self.device.type == "cpu" else 1)
        self.cos, self.sin = (part.to(self.device) for part in (rotary.cos, rotary.sin))
        self._verified: set[tuple[torch.Size, torch.dtype]] = set()
        with self.guard():
            verify_pieces(
                config.num_heads, config.num_kv_heads, config.head_dim, partition, self.device
            )

    def guard(self) -> AbstractContextManager[None]:
        return pinned(self.device)

    def close(self) -> None:
        self.workers.close()

    def set_threads(self, threads: int) -> None:
        self.workers.check_open()
        self.workers.close()
        self.workers = Workers(threads if self.device.type == "cpu" else 1)

    # -- load ---------------------------------------------------------------------------------

    def pack_embedding(self, weight: Tensor) -> Tensor:
        return self._matrix(weight)

    def pack_layer(self, weights: LayerWeights) -> Layer:
        attention = (weights.query, weights.key, weights.value)
        gate, up = weights.gate, weights.up
        ranges = column_blocks(gate.weight.shape[0])
        pairs = [torch.cat([gate.weight[a:b], up.weight[a:b]]) for a, b in ranges]
        biases = None
        if gate.bias is not None and up.bias is not None:
            biases = tuple(
                self._vector(torch.cat([gate.bias[a:b], up.bias[a:b]])) for a, b in ranges
            )
        layer = Layer(
            attention_norm=self._vector(weights.attention_norm),
            qkv=self._blocks(torch.cat([part.weight for part in attention])),
            qkv_bias=self._bias(*attention),
            query_norm=None if weights.query_norm is None else self._vector(weights.query_norm),
            key_norm=None if weights.key_norm is None else self._vector(weights.key_norm),
            output=self._blocks(weights.output.weight),
            output_bias=self._bias(weights.output),
            mlp_norm=self._vector(weights.mlp_norm),
            gate_up=tuple(self._matrix(pair) for pair in pairs),
            gate_up_bias=biases,
            down=self._blocks(weights.down.weight),
            down_bias=self._bias(weights.down),
            window=weights.window,
        )
        self._verify(Blocks(layer.gate_up, (), 0))
        return layer

    def pack_head(self, norm: Tensor, weight: Tensor) -> Head:
        rounded = weight.to(self.dtype).to(device=self.device, dtype=torch.float32)
        head = Head(self._vector(norm), Blocks.of(rounded))
        self._verify(head.weight)
        return head

    def _matrix(self, weight: Tensor) -> Tensor:
        """An own copy, aligned and contiguous whatever the caller holds."""
        return weight.to(
            device=self.device,
            dtype=self.dtype,
            copy=True,
            memory_format=torch.contiguous_format,
        )

    def _vector(self, weight: Tensor) -> Tensor:
        return weight.to(device=self.device, dtype=torch.float32).clone()

    def _blocks(self, weight: Tensor) -> Blocks:
        blocks = Blocks.of(self._matrix(weight))
        self._verify(blocks)
        return blocks

    def _bias(self, *projections: Projection) -> Tensor | None:
        if all(part.bias is None for part in projections):
            return None
        rows = [
            torch.zeros(part.weight.shape[0], dtype=torch.float32, device=part.weight.device)
            if part.bias is None
            else part.bias.float()
            for part in projections
        ]
        return self._vector(torch.cat(rows))

    def _verify(self, blocks: Blocks) -> None:
        """Prove each (shape, dtype) once: a product of another dtype is another kernel."""
        kinds = {(part.shape, part.dtype): part for part in blocks.parts}
        fresh = {kind: part for kind, part in kinds.items() if kind not in self._verified}
        with self.guard():
            verify_blocks(Blocks(tuple(fresh.values()), (), 0))
        self._verified.update(fresh)

    # -- one pass -------------------------------------------------------------------------------

    def start(self, batch: Batch) -> Step:
        positions = torch.from_numpy(batch.positions).to(self.device)
        return Step(
            batch,
            torch.from_numpy(batch.token_ids).to(self.device),
            to_tiles(self.cos[positions])[:, :, None, :],
            to_tiles(self.sin[positions])[:, :, None, :],
            torch.from_numpy(batch.slots).to(self.device),
        )

    def embed(self, embedding: Tensor, step: Step) -> Tensor:
        return to_tiles(embedding[step.token_ids].float())

    def attend_input(
        self, layer: Layer, hidden: Tensor, step: Step, keys: Tensor, values: Tensor
    ) -> Tensor:
        config = self.config
        normed = self._per_tile(
            lambda tile: self._norm(tile, layer.attention_norm).to(self.dtype), hidden
        )
        projected = layer.qkv.apply(normed, self.workers)
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        query = torch.empty(
            (*hidden.shape[:2], heads, dim), dtype=torch.float32, device=self.device
        )

        def split(tile: int) -> None:
            line = projected[tile]
            if layer.qkv_bias is not None:
                line = line + layer.qkv_bias
            line = line.view(TILE, heads + 2 * kv_heads, dim)
            q, k = line[:, :heads], line[:, heads : heads + kv_heads]
            v = line[:, heads + kv_heads :]
            if layer.query_norm is not None and layer.key_norm is not None:
                q, k = self._norm(q, layer.query_norm), self._norm(k, layer.key_norm)
            query[tile] = _rotate(q, step.cos[tile], step.sin[tile])
            k = _rotate(k, step.cos[tile], step.sin[tile])
            here = step.slots[tile * TILE : (tile + 1) * TILE]
            keys[here] = k[: len(here)].to(keys.dtype)
            values[here] = v[: len(here)].to(values.dtype)

        self.workers.each(split, range(hidden.shape[0]))
        return query.view(-1, heads, dim)

    def attend(
        self, layer: Layer, query: Tensor, step: Step, keys: Tensor, values: Tensor
    ) -> Tensor:
        pieces = step.pieces.get(layer.window)
        if pieces is None:
            pieces = plan_pieces(step.batch, layer.window, self.partition, self.device)
            step.pieces[layer.window] = pieces
        context = attend(query, keys, values, pieces, self.workers)
        return context.view(-1, TILE, context.shape[1] * context.shape[2])

    def attend_output(self, layer: Layer, context: Tensor, hidden: Tensor) -> Tensor:
        product = layer.output.apply(context.to(self.dtype), self.workers)
        return self._residual(hidden, product, layer.output_bias)

    def mlp(self, layer: Layer, hidden: Tensor) -> Tensor:
        normed = self._per_tile(
            lambda tile: self._norm(tile, layer.mlp_norm).to(self.dtype), hidden
        )
        width = sum(part.shape[0] // 2 for part in layer.gate_up)
        inner = torch.empty((*hidden.shape[:2], width), dtype=self.dtype, device=self.device)
        step = layer.gate_up[0].shape[0] // 2

        def gate_up(item: tuple[int, int]) -> None:
            block, tile = item
            part = layer.gate_up[block]
            both = product(normed[tile], part).float()
            if layer.gate_up_bias is not None:
                both = both + layer.gate_up_bias[block][:, None]
            half = part.shape[0] // 2
            gated = silu(both[:half]).mul_(both[half:])
            inner[tile, :, block * step : block * step + half] = gated.t()

        self.workers.each(gate_up, tasks(len(layer.gate_up), hidden.shape[0]))
        return self._residual(hidden, layer.down.apply(inner, self.workers), layer.down_bias)

    def logits(self, head: Head, hidden: Tensor, step: Step) -> np.ndarray:
        wanted = torch.from_numpy(step.batch.logit_rows).to(self.device)
        rows = to_tiles(hidden.view(-1, hidden.shape[-1])[wanted])
        normed = self._per_tile(lambda tile: self._norm(tile, head.norm).to(self.dtype), rows)
        logits = head.weight.apply(normed.float(), self.workers)
        return logits.view(-1, logits.shape[-1])[: len(wanted)].cpu().numpy()

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return rows * scale * weight

    def _per_tile(self, op: Callable[[Tensor], Tensor], tiles: Tensor) -> Tensor:
        out = torch.empty(tiles.shape, dtype=self.dtype, device=self.device)

        def task(tile: int) -> None:
            out[tile] = op(tiles[tile])

        self.workers.each(task, range(tiles.shape[0]))
        return out

    def _residual(self, hidden: Tensor, product: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            product += bias
        return product.add_(hidden)


def _rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + dim/2) of [TILE, heads, dim] by cos, sin [TILE, 1, dim/2]."""
    low, high = rows.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def make(
    config: ModelConfig,
    numerics: str,
    rotary: RotaryTable,
    device: str = "cpu",
    threads: int = 1,
) -> TorchKernels:
    return TorchKernels(config, numerics, rotary, device, threads)
