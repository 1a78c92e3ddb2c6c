"""The op list every backend implements, at the granularity a fused kernel wants, and what it
promises.

A pass is: `start`, `embed`, then per layer `attend_input`, `attend`, `attend_output`, `mlp`, then
`logits`. Weights are packed once at load into whatever layout the backend likes. Hidden rows travel
between ops as an opaque value of the backend's own.

The promise (DESIGN contract, rule 3): each row's result is computed in a reduction order fixed by
the op's own shape. It does not depend on how many rows share the pass, which of them it is, the
segments beside it, the number of threads, or global switches of the host program. Concretely:

- Products sum over K in an order fixed by (out, in); work is split over rows and output columns
  only.
- Attention reduces keys in partitions of `partition` lanes at absolute positions, each from
  scratch, merged in ascending order. The lane of a key is its content position, also inside a tree;
  a lane the row does not see holds zeros (the null slot), whatever else lives in the pool.
- A row's K and V are written to the pool before they are read, so every reader sees the stored
  form.
- A non-finite value in one row stays in that row.

Numerics modes of a product y = x W^T (everything else is float32 in all of them):

- float32, bfloat16: weights and inputs in that dtype, sums in float32.
- a16, for a quantised matrix w = scale * q + offset: inputs x rounded to bfloat16, q exact. Over
  the groups of columns in ascending order, in float32:
      y = y + (scale * dot(x, q) + offset * sum(x))
- a8, for a quantised matrix: per row and group of the weight s = amax(|x|) / 127, q_x = x / s
  rounded half to even and clamped to +-127 (0 where s is 0 or not finite). Dot and sum are exact
  integers:
      y = y + s * (scale * float(dot(q_x, q)) + offset * float(sum(q_x)))
- The term with `offset` is absent, not zero, for a type without. A matrix that is not quantised
  runs as in bfloat16 mode in a16 and a8. A quantised embedding gives scale * q + offset in float32.

An adapter (LoRA, arXiv 2106.09685) adds to a product y = x W^T + b of its own rows, and the other
rows skip it: their bits are those of a model without adapters.
      u = scale * (A x)        x as floats of the mode (float32, else rounded to bfloat16), A as
      y = y + B u              stored; sums and products in float32, in orders fixed by the shapes
Orders of these sums: reference and torch, the library's own for that shape; cpu, A x over K in 16
lanes and B u over the rank, ascending (native/adapter_ops.h). The sum with y comes after the bias
and before whatever follows, q/k norm or activation; where y goes into the residual, after that sum:
(hidden + y) + B u.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from foreword.errors import KernelUnavailable
from foreword.model.batch import Batch
from foreword.model.config import ModelConfig
from foreword.model.weights.grouped import GroupedInt

QUANTISED = ("a16", "a8")  # the modes that take a quantised matrix as it is

Hidden = Any  # residual rows, float32, layout of the backend
Packed = Any  # weights in the layout of the backend
Pass = Any  # what `start` precomputed for one batch
Weight = Tensor | GroupedInt  # a matrix [out, in]; a GroupedInt only in a mode of QUANTISED


@dataclass(frozen=True, slots=True)
class Projection:
    """y = x W^T + b."""

    weight: Weight  # [out, in]
    bias: Tensor | None = None  # [out]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer as the checkpoint holds it, any float dtype or quantised."""

    attention_norm: Tensor  # [hidden]
    query: Projection  # [heads * head_dim, hidden]
    key: Projection  # [kv_heads * head_dim, hidden]
    value: Projection  # [kv_heads * head_dim, hidden]
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None  # [head_dim]
    output: Projection  # [hidden, heads * head_dim]
    mlp_norm: Tensor  # [hidden]
    gate: Projection  # [intermediate, hidden]
    up: Projection  # [intermediate, hidden]
    down: Projection  # [hidden, intermediate]
    window: int | None  # the token itself + window - 1 earlier keys; None = all


PROJECTIONS = ("query", "key", "value", "output", "gate", "up", "down")  # of LayerWeights


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one product: B (scale * (A x))."""

    down: Tensor  # A [rank, in]; float32, float16 or bfloat16
    up: Tensor  # B [out, rank]; one of these, too
    scale: float  # representable in float32


AdapterLayer = Mapping[str, LowRank]  # by projection; those left out stay as they are
Adapters = Mapping[str, Packed]  # by name, what `pack_adapter` made
NO_ADAPTERS: Adapters = {}


class Backend(Protocol):
    """What every backend does at load: one folder (or file) of kernels/."""

    name: str

    def guard(self) -> AbstractContextManager[None]:
        """Pin the global switches of the host program that could move a bit; restore on exit.
        Re-entrant."""

    def step_guard(self) -> AbstractContextManager[None]:
        """The same around a step of an engine, where a backend may rely on what its own passes
        pin: around them there are integers, bytes to move and numpy."""

    def close(self) -> None:
        """End worker threads, if any; a pass afterwards raises KernelUnavailable. May be called
        twice."""

    def set_threads(self, threads: int) -> None:
        """Use so many threads from the next pass on; no bit depends on it."""

    def pack_embedding(self, weight: Weight) -> Packed: ...

    def pack_layer(self, weights: LayerWeights) -> Packed: ...

    def pack_head(self, norm: Tensor, weight: Weight) -> Packed: ...

    def pack_adapter(self, layers: SequenceOf[AdapterLayer]) -> Packed:
        """One for each layer of the model, shapes checked."""


class Kernels(Backend, Protocol):
    """A backend that runs a pass op by op."""

    def start(self, batch: Batch, adapters: Adapters = NO_ADAPTERS) -> Pass:
        """Index tables of one pass, shared by all layers. `adapters`: at least those that the
        batch's segments name."""

    def extra(self, step: Pass, layer: int) -> Packed | None:
        """What adapters add to the products of one layer; None in a batch without."""

    def embed(self, embedding: Packed, step: Pass) -> Hidden: ...

    def attend_input(
        self,
        layer: Packed,
        hidden: Hidden,
        step: Pass,
        keys: Tensor,
        values: Tensor,
        extra: Packed | None = None,
    ) -> Hidden:
        """Norm, Q/K/V products, biases, q/k norm, rotary; write K and V into `keys` and `values`
        ([slots, kv_heads, width], in the format of their dtype: kv/pool.py) at the batch's slots;
        return the queries."""

    def attend(
        self, layer: Packed, query: Hidden, step: Pass, keys: Tensor, values: Tensor
    ) -> Hidden:
        """Softmax(q k / sqrt(head_dim)) v over what each row sees (its window included)."""

    def attend_output(
        self, layer: Packed, context: Hidden, hidden: Hidden, extra: Packed | None = None
    ) -> Hidden:
        """hidden + context W^T + b."""

    def mlp(self, layer: Packed, hidden: Hidden, extra: Packed | None = None) -> Hidden:
        """hidden + down(silu(gate(norm(hidden))) * up(norm(hidden)))."""

    def logits(self, head: Packed, hidden: Hidden, step: Pass) -> np.ndarray:
        """Final norm and LM head on the batch's `logit_rows` only: float32 [len(logit_rows),
        vocab]."""


@runtime_checkable
class WholePass(Backend, Protocol):
    """A backend that runs all ops of a pass, in the order above, in one call."""

    def pack_tied_head(self, norm: Tensor, embedding: Packed, rows: int) -> Packed:
        """`pack_head` over the first `rows` rows of a packed embedding, without a copy."""

    def run(
        self,
        embedding: Packed,
        layers: list[Packed],
        head: Packed,
        batch: Batch,
        keys: list[Tensor],
        values: list[Tensor],
        skip: Set[int] = frozenset(),
        adapters: Adapters = NO_ADAPTERS,
    ) -> np.ndarray:
        """As `logits`; `keys` and `values` are those of every layer. `skip`: units left out, see
        protocols.PartialModel. `adapters`: as for `start`."""


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """cos and sin of every position, float32 [positions, head_dim / 2], attention factor
    included."""

    cos: Tensor
    sin: Tensor

    BLOCK = 1024  # positions computed at a time, so that a row never depends on the table's length

    @staticmethod
    def build(frequencies: np.ndarray, factor: float, positions: int) -> RotaryTable:
        """Angles are float32 products of position and frequency, as the models were trained."""
        inverse = frequencies.astype(np.float32)
        blocks = []
        for start in range(0, positions, RotaryTable.BLOCK):
            index = np.arange(start, start + RotaryTable.BLOCK, dtype=np.float32)
            blocks.append((index[:, None] * inverse[None, :]).astype(np.float64))
        angles = np.concatenate(blocks)[:positions]
        cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
        return RotaryTable(
            torch.from_numpy(cos.astype(np.float32)), torch.from_numpy(sin.astype(np.float32))
        )


def require_device(device: str) -> torch.device:
    """The torch device, or KernelUnavailable when it is not here."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise KernelUnavailable(f"unknown device {device!r}; use cpu or cuda") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise KernelUnavailable(
            "device 'cuda' asked for, but PyTorch sees no GPU; use --device cpu"
        )
    if found.type not in ("cpu", "cuda"):
        raise KernelUnavailable(f"device {device!r} is not supported; use cpu or cuda")
    return found


def check_config(config: ModelConfig) -> None:
    """Invariants every backend relies on."""
    assert config.num_heads % config.num_kv_heads == 0, (config.num_heads, config.num_kv_heads)
    assert config.head_dim % 2 == 0, config.head_dim
    assert len(config.windows) == config.num_layers
