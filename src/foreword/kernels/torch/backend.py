"""The ops on stock PyTorch: every op on tiles of TILE rows, one thread a tile, on any device.

float32: weights, products and residual in float32. bfloat16: weights and the inputs of products are
bfloat16 (stock products round their result to bfloat16, too); norms, rotary, softmax, residual and
logits are float32, the LM head holding its bfloat16 values widened. a16, a8: products as `ops.py`
defines them, the rest as in bfloat16 mode, except that the inputs of products stay float32 until
the product rounds or quantises them.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from foreword.config import NUMERICS
from foreword.errors import KernelUnavailable
from foreword.kernels._kv import stored
from foreword.kernels.guard import pinned
from foreword.kernels.ops import (
    NO_ADAPTERS,
    QUANTISED,
    AdapterLayer,
    Adapters,
    LayerWeights,
    Projection,
    RotaryTable,
    Weight,
    check_config,
    require_device,
)
from foreword.kernels.torch.adapters import (
    AdapterFactors,
    Added,
    Extra,
    Factors,
    add_to_rows,
    places,
    verify_factors,
)
from foreword.kernels.torch.attention import attend
from foreword.kernels.torch.check import verify_pieces
from foreword.kernels.torch.inputs import Inputs
from foreword.kernels.torch.linear import (
    TILE,
    Blocks,
    column_blocks,
    to_tiles,
    verify_blocks,
)
from foreword.kernels.torch.parts import Head, Layer, Step
from foreword.kernels.torch.pieces import plan_pieces
from foreword.kernels.torch.products import (
    NOTHING,
    BlockProduct,
    Dense,
    FusedGate,
    Gate,
    GateProduct,
    Joined,
    Product,
)
from foreword.kernels.torch.quantised import (
    QuantisedBlocks,
    QuantisedEmbedding,
    verify_quantised,
)
from foreword.kernels.torch.workers import Workers
from foreword.model.batch import Batch
from foreword.model.config import ModelConfig
from foreword.model.weights.grouped import GroupedInt, dense

PARTITION = 128  # keys in an attention partition


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
        if numerics not in NUMERICS:
            raise KernelUnavailable(f"backend torch has no numerics {numerics!r}")
        self.config = config
        self.numerics = numerics
        self.device = require_device(device)
        self.partition = partition
        self.dtype = torch.float32 if numerics == "float32" else torch.bfloat16  # of float weights
        self.input_dtype = torch.float32 if numerics in QUANTISED else self.dtype  # of products
        self.workers = Workers(threads if self.device.type == "cpu" else 1)
        self.cos, self.sin = (part.to(self.device) for part in (rotary.cos, rotary.sin))
        self._verified: set[tuple[object, ...]] = set()  # kinds of product proved
        with self.guard():
            verify_pieces(
                config.num_heads, config.num_kv_heads, config.head_dim, partition, self.device
            )

    def guard(self) -> AbstractContextManager[None]:
        return pinned(self.device)

    def step_guard(self) -> AbstractContextManager[None]:
        return self.guard()

    def close(self) -> None:
        self.workers.close()

    def set_threads(self, threads: int) -> None:
        self.workers.check_open()
        self.workers.close()
        self.workers = Workers(threads if self.device.type == "cpu" else 1)

    # -- load ---------------------------------------------------------------------------------

    def pack_embedding(self, weight: Weight) -> Tensor | QuantisedEmbedding:
        if isinstance(weight, GroupedInt) and self.numerics in QUANTISED:
            return QuantisedEmbedding.of(weight, self.device)
        return self._matrix(dense(weight))

    def pack_layer(self, weights: LayerWeights) -> Layer:
        attention = (weights.query, weights.key, weights.value)
        return Layer(
            attention_norm=self._vector(weights.attention_norm),
            qkv=self._product(*(part.weight for part in attention)),
            qkv_bias=self._bias(*attention),
            query_norm=None if weights.query_norm is None else self._vector(weights.query_norm),
            key_norm=None if weights.key_norm is None else self._vector(weights.key_norm),
            output=self._product(weights.output.weight),
            output_bias=self._bias(weights.output),
            mlp_norm=self._vector(weights.mlp_norm),
            gate_up=self._gate(weights.gate, weights.up),
            down=self._product(weights.down.weight),
            down_bias=self._bias(weights.down),
            window=weights.window,
        )

    def pack_head(self, norm: Tensor, weight: Weight) -> Head:
        if isinstance(weight, GroupedInt) and self.numerics in QUANTISED:
            return Head(self._vector(norm), self._quantised(weight))
        rounded = dense(weight).to(self.dtype).to(device=self.device, dtype=torch.float32)
        blocks = Blocks.of(rounded)
        self._verify(blocks)
        return Head(self._vector(norm), Dense(blocks, self.dtype))

    def pack_adapter(self, layers: SequenceOf[AdapterLayer]) -> AdapterFactors:
        packed = [
            {name: Factors.of(part, self.device) for name, part in layer.items()}
            for layer in layers
        ]
        for factors in (factors for layer in packed for factors in layer.values()):
            if factors.kind not in self._verified:
                verify_factors(factors)
                self._verified.add(factors.kind)
        return packed

    def _product(self, *weights: Weight) -> Product:
        """Of one matrix, or of several with the same inputs."""
        if self.numerics in QUANTISED and any(isinstance(part, GroupedInt) for part in weights):
            parts = tuple(self._single(part) for part in weights)
            return parts[0] if len(parts) == 1 else Joined(parts)
        return Dense(self._blocks(torch.cat([dense(part) for part in weights])), self.dtype)

    def _single(self, weight: Weight) -> BlockProduct:
        if isinstance(weight, GroupedInt):
            return self._quantised(weight)
        return Dense(self._blocks(weight), self.dtype)

    def _quantised(self, weight: GroupedInt) -> QuantisedBlocks:
        blocks = QuantisedBlocks.of(weight, self.numerics, self.device)
        if (weight.group, *weight.shape) not in self._verified:
            with self.guard():
                verify_quantised(blocks, self.numerics, self.device)
            self._verified.add((weight.group, *weight.shape))
        return blocks

    def _gate(self, gate: Projection, up: Projection) -> GateProduct:
        ranges = column_blocks(gate.weight.shape[0])
        if self.numerics in QUANTISED and (
            isinstance(gate.weight, GroupedInt) or isinstance(up.weight, GroupedInt)
        ):
            return Gate(
                self._single(gate.weight),
                self._single(up.weight),
                tuple(ranges),
                None if gate.bias is None else self._vector(gate.bias),
                None if up.bias is None else self._vector(up.bias),
            )
        both = dense(gate.weight), dense(up.weight)
        pairs = tuple(
            self._matrix(torch.cat([part[start:stop] for part in both])) for start, stop in ranges
        )
        biases = None
        if gate.bias is not None and up.bias is not None:
            biases = tuple(
                self._vector(torch.cat([gate.bias[start:stop], up.bias[start:stop]]))
                for start, stop in ranges
            )
        self._verify(Blocks(pairs, (), 0))
        return FusedGate(pairs, biases)

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
            torch.zeros(part.weight.shape[0], dtype=torch.float32, device="cpu")
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

    def start(self, batch: Batch, adapters: Adapters = NO_ADAPTERS) -> Step:
        positions = torch.from_numpy(batch.positions).to(self.device)
        return Step(
            batch,
            torch.from_numpy(batch.token_ids).to(self.device),
            to_tiles(self.cos[positions])[:, :, None, :],
            to_tiles(self.sin[positions])[:, :, None, :],
            torch.from_numpy(batch.slots).to(self.device),
            [(adapters[name], rows) for name, rows in places(batch, self.device).items()],
        )

    def extra(self, step: Step, layer: int) -> Extra | None:
        if not step.adapted:
            return None
        users = [(packed[layer], rows) for packed, rows in step.adapted]
        return Extra(users, self.dtype, self.workers)

    def embed(self, embedding: Tensor | QuantisedEmbedding, step: Step) -> Tensor:
        if isinstance(embedding, QuantisedEmbedding):
            return to_tiles(embedding.rows(step.token_ids))
        return to_tiles(embedding[step.token_ids].float())

    def attend_input(
        self,
        layer: Layer,
        hidden: Tensor,
        step: Step,
        keys: Tensor,
        values: Tensor,
        extra: Extra | None = None,
    ) -> Tensor:
        config = self.config
        inputs = self._normed(hidden, layer.attention_norm)
        projected = layer.qkv.apply(inputs, self.workers)
        heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
        starts = {"query": 0, "key": heads * dim, "value": (heads + kv_heads) * dim}
        added = {name: extra.added(name, inputs) for name in starts} if extra else {}
        query = torch.empty(
            (*hidden.shape[:2], heads, dim), dtype=torch.float32, device=self.device
        )

        def split(tile: int) -> None:
            line = projected[tile]
            if layer.qkv_bias is not None:
                line = line + layer.qkv_bias
            for name, more in added.items():
                add_to_rows(line, more, tile, starts[name])
            line = line.view(TILE, heads + 2 * kv_heads, dim)
            q, k = line[:, :heads], line[:, heads : heads + kv_heads]
            v = line[:, heads + kv_heads :]
            if layer.query_norm is not None and layer.key_norm is not None:
                q, k = self._norm(q, layer.query_norm), self._norm(k, layer.key_norm)
            query[tile] = _rotate(q, step.cos[tile], step.sin[tile])
            k = _rotate(k, step.cos[tile], step.sin[tile])
            here = step.slots[tile * TILE : (tile + 1) * TILE]
            keys[here] = stored(k[: len(here)], keys.dtype)
            values[here] = stored(v[: len(here)], values.dtype)

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

    def attend_output(
        self, layer: Layer, context: Tensor, hidden: Tensor, extra: Extra | None = None
    ) -> Tensor:
        inputs = self._inputs(context.to(self.input_dtype))
        product = layer.output.apply(inputs, self.workers)
        result = self._residual(hidden, product, layer.output_bias)
        return result if extra is None else _plus(result, extra.added("output", inputs))

    def mlp(self, layer: Layer, hidden: Tensor, extra: Extra | None = None) -> Tensor:
        inputs = self._normed(hidden, layer.mlp_norm)
        more = NOTHING
        if extra is not None:
            more = extra.added("gate", inputs), extra.added("up", inputs)
        inputs = self._inputs(layer.gate_up.apply(inputs, self.workers, more))
        down = layer.down.apply(inputs, self.workers)
        result = self._residual(hidden, down, layer.down_bias)
        return result if extra is None else _plus(result, extra.added("down", inputs))

    def logits(self, head: Head, hidden: Tensor, step: Step) -> np.ndarray:
        wanted = torch.from_numpy(step.batch.logit_rows).to(self.device)
        rows = to_tiles(hidden.view(-1, hidden.shape[-1])[wanted])
        normed = self._normed(rows, head.norm)
        logits = head.weight.apply(normed, self.workers)
        return logits.view(-1, logits.shape[-1])[: len(wanted)].cpu().numpy()

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(rows.square().mean(-1, keepdim=True) + self.config.norm_eps)
        return rows * scale * weight

    def _normed(self, tiles: Tensor, weight: Tensor) -> Inputs:
        out = torch.empty(tiles.shape, dtype=self.input_dtype, device=self.device)

        def task(tile: int) -> None:
            out[tile] = self._norm(tiles[tile], weight).to(self.input_dtype)

        self.workers.each(task, range(tiles.shape[0]))
        return self._inputs(out)

    def _inputs(self, tiles: Tensor) -> Inputs:
        return Inputs(tiles, self.numerics, self.workers)

    def _residual(self, hidden: Tensor, product: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            product += bias
        return product.add_(hidden)


def _plus(result: Tensor, added: Added) -> Tensor:
    """What adapters add to rows of [tiles, TILE, out], in place."""
    for tile in added:
        add_to_rows(result[tile], added, tile)
    return result


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
