"""The ops written as plainly as they can be: one row at a time, one head at a time. Never
optimised.

The specification other backends are judged by, and the answer to "is it the kernel?" (`--backend
reference`). A row is one matrix-vector product per weight, so nothing beside it can matter.
`compute` is float32 in use and float64 when tests need the truth.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foreword.config import NUMERICS
from foreword.errors import KernelUnavailable
from foreword.kernels import _kv, _quantised
from foreword.kernels.guard import pinned
from foreword.kernels.ops import (
    NO_ADAPTERS,
    QUANTISED,
    AdapterLayer,
    Adapters,
    LayerWeights,
    LowRank,
    Projection,
    RotaryTable,
    Weight,
    check_config,
)
from foreword.model.batch import Batch
from foreword.model.config import ModelConfig
from foreword.model.weights.grouped import GroupedInt, dense

PARTITION = 32  # keys in an attention partition


@dataclass(frozen=True, slots=True)
class Step:
    batch: Batch
    lanes: tuple[np.ndarray, ...]  # per row: the slot of every content position up to its own
    adapters: tuple[SequenceOf[AdapterLayer] | None, ...]  # per row


Extra = SequenceOf[AdapterLayer]  # per row, empty for one without an adapter


class ReferenceKernels:
    """Implements ops.Kernels; hidden rows are a list of vectors."""

    name = "reference"

    def __init__(
        self,
        config: ModelConfig,
        numerics: str,
        rotary: RotaryTable,
        compute: torch.dtype = torch.float32,
        partition: int = PARTITION,
    ) -> None:
        check_config(config)
        self.config = config
        if numerics not in NUMERICS:
            raise KernelUnavailable(f"backend reference has no numerics {numerics!r}")
        self.numerics = numerics
        self.rounding = compute if numerics == "float32" else torch.bfloat16
        self.compute = compute
        self.partition = partition
        self.cos, self.sin = rotary.cos.to(compute), rotary.sin.to(compute)
        self._closed = False

    def guard(self) -> AbstractContextManager[None]:
        return pinned(torch.device("cpu"))

    def step_guard(self) -> AbstractContextManager[None]:
        return self.guard()

    def close(self) -> None:
        self._closed = True

    def set_threads(self, threads: int) -> None:
        """One thread it is, whatever is asked."""

    def pack_embedding(self, weight: Weight) -> Weight:
        return self._matrix(weight)

    def pack_layer(self, weights: LayerWeights) -> LayerWeights:
        def projection(part: Projection) -> Projection:
            return Projection(self._matrix(part.weight), vector(part.bias))

        def vector(part: Tensor | None) -> Tensor | None:
            return None if part is None else _own(part.to(self.compute))

        return LayerWeights(
            attention_norm=_own(weights.attention_norm.to(self.compute)),
            query=projection(weights.query),
            key=projection(weights.key),
            value=projection(weights.value),
            query_norm=vector(weights.query_norm),
            key_norm=vector(weights.key_norm),
            output=projection(weights.output),
            mlp_norm=_own(weights.mlp_norm.to(self.compute)),
            gate=projection(weights.gate),
            up=projection(weights.up),
            down=projection(weights.down),
            window=weights.window,
        )

    def pack_head(self, norm: Tensor, weight: Weight) -> tuple[Tensor, Weight]:
        return _own(norm.to(self.compute)), self._matrix(weight)

    def pack_adapter(self, layers: SequenceOf[AdapterLayer]) -> list[AdapterLayer]:
        return [
            {
                name: LowRank(
                    _own(part.down.to(self.compute)), _own(part.up.to(self.compute)), part.scale
                )
                for name, part in layer.items()
            }
            for layer in layers
        ]

    def start(self, batch: Batch, adapters: Adapters = NO_ADAPTERS) -> Step:
        if self._closed:
            raise KernelUnavailable("this model is closed; load it again to use it")
        lanes: list[np.ndarray] = []
        for segment in batch.segments:
            cached = segment.slots[: segment.cached]
            own = segment.slots[segment.cached :]
            first = len(lanes)
            for row, parent in enumerate(segment.parents):
                before = lanes[first + parent] if parent >= 0 else cached
                lanes.append(np.append(before, own[row]))
        own_adapters = [
            None if segment.adapter is None else adapters[segment.adapter]
            for segment in batch.segments
            for _ in segment.parents
        ]
        return Step(batch, tuple(lanes), tuple(own_adapters))

    def extra(self, step: Step, layer: int) -> Extra | None:
        if not any(step.adapters):
            return None
        return [{} if one is None else one[layer] for one in step.adapters]

    def embed(self, embedding: Weight, step: Step) -> list[Tensor]:
        tokens = step.batch.token_ids.tolist()
        if isinstance(embedding, GroupedInt):
            return [_quantised.embedding_row(embedding, token, self.compute) for token in tokens]
        return [embedding[token] for token in tokens]

    def attend_input(
        self,
        layer: LayerWeights,
        hidden: list[Tensor],
        step: Step,
        keys: Tensor,
        values: Tensor,
        extra: Extra | None = None,
    ) -> list[Tensor]:
        queries = []
        for row, line in enumerate(hidden):
            position, slot = int(step.batch.positions[row]), int(step.batch.slots[row])
            normed = self._norm(line, layer.attention_norm)
            added = extra[row] if extra else {}
            q, k, v = (
                self._add(self._product(part, normed), added.get(name), normed)
                for name, part in (
                    ("query", layer.query),
                    ("key", layer.key),
                    ("value", layer.value),
                )
            )
            query, key = self._heads(q, layer.query_norm), self._heads(k, layer.key_norm)
            value = v.view(-1, self.config.head_dim)
            queries.append(self._rotate(query, position))
            keys[slot] = _kv.stored(self._rotate(key, position), keys.dtype)
            values[slot] = _kv.stored(value, values.dtype)
        return queries

    def attend(
        self, layer: LayerWeights, query: list[Tensor], step: Step, keys: Tensor, values: Tensor
    ) -> list[Tensor]:
        group = self.config.num_heads // self.config.num_kv_heads
        context = []
        for row, q in enumerate(query):
            heads = [
                self._attend_head(
                    q[head],
                    keys[:, head // group],
                    values[:, head // group],
                    step.lanes[row],
                    layer.window,
                )
                for head in range(self.config.num_heads)
            ]
            context.append(torch.cat(heads))
        return context

    def _attend_head(
        self, q: Tensor, keys: Tensor, values: Tensor, lanes: np.ndarray, window: int | None
    ) -> Tensor:
        """One row, one head: partitions from scratch, merged in ascending position."""
        position = len(lanes) - 1
        low = 0 if window is None else max(0, position - window + 1)
        top = total = value = None
        for start in range(low // self.partition * self.partition, position + 1, self.partition):
            seen = range(max(start, low), min(start + self.partition, position + 1))
            k = torch.zeros(self.partition, q.shape[0], dtype=self.compute, device="cpu")
            v = torch.zeros(self.partition, q.shape[0], dtype=self.compute, device="cpu")
            visible = torch.zeros(self.partition, dtype=torch.bool, device="cpu")
            for content in seen:
                slot = int(lanes[content])
                k[content - start] = _kv.widened(keys[slot], q.shape[0], self.compute)
                v[content - start] = _kv.widened(values[slot], q.shape[0], self.compute)
                visible[content - start] = True
            scores = torch.mv(k, q) * self.config.head_dim**-0.5
            scores = torch.where(visible, scores, torch.full_like(scores, float("-inf")))
            part_top = scores.max()
            weights = (scores - part_top).exp()
            part_total, part_value = weights.sum(), torch.mv(v.t(), weights)
            if top is None or total is None or value is None:
                top, total, value = part_top, part_total, part_value
                continue
            higher = torch.maximum(top, part_top)
            old, new = (top - higher).exp(), (part_top - higher).exp()
            total = total * old + part_total * new
            value = value * old + part_value * new
            top = higher
        assert value is not None
        assert total is not None
        return value / total

    def attend_output(
        self,
        layer: LayerWeights,
        context: list[Tensor],
        hidden: list[Tensor],
        extra: Extra | None = None,
    ) -> list[Tensor]:
        out = []
        for row, line in enumerate(context):
            added = extra[row].get("output") if extra else None
            out.append(self._add(hidden[row] + self._product(layer.output, line), added, line))
        return out

    def mlp(
        self, layer: LayerWeights, hidden: list[Tensor], extra: Extra | None = None
    ) -> list[Tensor]:
        out = []
        for row, line in enumerate(hidden):
            added = extra[row] if extra else {}
            normed = self._norm(line, layer.mlp_norm)
            gate = self._add(self._product(layer.gate, normed), added.get("gate"), normed)
            up = self._add(self._product(layer.up, normed), added.get("up"), normed)
            inner = gate * torch.sigmoid(gate) * up
            result = line + self._product(layer.down, inner)
            out.append(self._add(result, added.get("down"), inner))
        return out

    def logits(self, head: tuple[Tensor, Weight], hidden: list[Tensor], step: Step) -> np.ndarray:
        norm, weight = head
        rows = [
            self._product(Projection(weight), self._norm(hidden[row], norm))
            for row in step.batch.logit_rows.tolist()
        ]
        return torch.stack(rows).float().numpy()

    def _matrix(self, weight: Weight) -> Weight:
        if isinstance(weight, GroupedInt) and self.numerics in QUANTISED:
            return weight
        return _own(self._rounded(dense(weight)))

    def _rounded(self, values: Tensor) -> Tensor:
        """Weights and inputs of products carry the precision of the numerics mode."""
        return values.to(self.rounding).to(self.compute)

    def _product(self, projection: Projection, line: Tensor) -> Tensor:
        weight = projection.weight
        if isinstance(weight, GroupedInt):
            result = _quantised.product(weight, line, self.numerics, self.compute)
        else:
            result = torch.mv(weight, self._rounded(line))
        return result if projection.bias is None else result + projection.bias

    def _add(self, result: Tensor, adapter: LowRank | None, line: Tensor) -> Tensor:
        """What an adapter makes of a product's result; `line` is the product's input."""
        if adapter is None:
            return result
        low = torch.mv(adapter.down, self._rounded(line)) * adapter.scale
        return result + torch.mv(adapter.up, low)

    def _norm(self, line: Tensor, weight: Tensor) -> Tensor:
        return (
            line * torch.rsqrt((line * line).mean(-1, keepdim=True) + self.config.norm_eps) * weight
        )

    def _heads(self, line: Tensor, norm: Tensor | None) -> Tensor:
        heads = line.view(-1, self.config.head_dim)
        return heads if norm is None else torch.stack([self._norm(head, norm) for head in heads])

    def _rotate(self, heads: Tensor, position: int) -> Tensor:
        cos, sin = self.cos[position], self.sin[position]
        low, high = heads.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


def _own(weight: Tensor) -> Tensor:
    """Aligned and contiguous whatever the caller holds: a stock product may depend on either."""
    return weight.clone(memory_format=torch.contiguous_format)


def make(
    config: ModelConfig, numerics: str, rotary: RotaryTable, device: str = "cpu", threads: int = 1
) -> ReferenceKernels:
    """`threads` is accepted and unused: the reference is one row at a time on one thread."""
    if device != "cpu":
        raise KernelUnavailable(f"backend reference runs on cpu only, not {device!r}")
    return ReferenceKernels(config, numerics, rotary)
