"""What the torch backend keeps of a model, and of one pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from foreword.kernels.torch.adapters import AdapterFactors, Places
from foreword.kernels.torch.pieces import Pieces
from foreword.kernels.torch.products import GateProduct, Product
from foreword.model.batch import Batch


@dataclass(frozen=True, slots=True)
class Layer:
    attention_norm: Tensor
    qkv: Product
    qkv_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Product
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: GateProduct
    down: Product
    down_bias: Tensor | None
    window: int | None


@dataclass(frozen=True, slots=True)
class Head:
    norm: Tensor
    weight: Product


@dataclass(slots=True)
class Step:
    """Index tables of one pass."""

    batch: Batch
    token_ids: Tensor  # [rows]
    cos: Tensor  # [tiles, TILE, 1, head_dim / 2]
    sin: Tensor
    slots: Tensor  # [rows]
    adapted: list[tuple[AdapterFactors, Places]]  # adapters in use, and the rows that have them
    pieces: dict[int | None, Pieces] = field(default_factory=dict)  # by window
