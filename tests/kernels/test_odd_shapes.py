"""Sizes that fill no vector register: the last elements of a loop run other code than the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rig import BASE, assert_same_bits, build, ids_of, in_blocks, one_by_one, one_pass

from foreword.model.config import ModelConfig

ODD: dict[str, ModelConfig] = {
    "odd intermediate": replace(BASE, intermediate_size=141),
    "one intermediate": replace(BASE, intermediate_size=1),
    "odd hidden": replace(BASE, hidden_size=51, num_heads=3, num_kv_heads=1, head_dim=10),
    "head_dim 2": replace(BASE, hidden_size=7, num_heads=5, num_kv_heads=5, head_dim=2),
    "head_dim 6": replace(BASE, hidden_size=36, num_heads=6, num_kv_heads=3, head_dim=6,
                          qk_norm=True),
    "odd vocabulary": replace(BASE, vocab_size=1031, tied_head=False),
    "wide": replace(BASE, hidden_size=136, intermediate_size=1100, num_layers=1, windows=(None,)),
}  # fmt: skip


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ODD)
@pytest.mark.parametrize("partition", [16, 24])
def test_odd_shapes_keep_rows_apart(shape: str, numerics: str, partition: int) -> None:
    """48 rows: every place of a tile, of a full piece and of a partial piece."""
    model, ids = build(ODD[shape], numerics, partition=partition), ids_of(48, 1)
    wanted = one_by_one(model, ids)
    assert_same_bits(one_pass(model, ids), wanted)
    assert_same_bits(in_blocks(model, ids, [7, 12, 1]), wanted)
