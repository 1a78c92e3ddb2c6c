"""The tensors of a KV cache: shapes, the null slot, and moves that overlap."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from foreword.build import make_store
from foreword.config import CacheConfig, EngineConfig
from foreword.errors import ConfigError
from foreword.kernels._kv import stored, widened
from foreword.kv.pool import KVPool, bytes_per_slot, row_width
from kv_fakes import TensorPool


def test_tensors_have_a_row_per_slot_and_start_at_zero() -> None:
    with torch.inference_mode():
        pool = KVPool(3, 5, 2, 4, torch.bfloat16)
    assert len(pool.keys) == len(pool.values) == 3
    for tensor in (*pool.keys, *pool.values):
        assert tensor.shape == (5, 2, 4)
        assert tensor.dtype == torch.bfloat16
        assert not tensor.any()
        assert not tensor.is_inference()  # it outlives the caller's inference mode
    assert pool.num_bytes == sum(tensor.nbytes for tensor in (*pool.keys, *pool.values))
    assert pool.num_bytes == 5 * bytes_per_slot(3, 2, 4, torch.bfloat16)


def test_smollm2_costs_what_the_table_says() -> None:
    assert bytes_per_slot(30, 3, 64, torch.bfloat16) == 23_040
    assert bytes_per_slot(30, 3, 64, torch.int8) == 12_240


def test_rows_of_int8_carry_their_scale_wherever_they_go() -> None:
    pool = KVPool(2, 6, 2, 4, torch.int8)
    assert pool.keys[0].shape == (6, 2, row_width(4, torch.int8)) == (6, 2, 8)
    assert pool.num_bytes == sum(tensor.nbytes for tensor in (*pool.keys, *pool.values))
    rows = torch.tensor([[[1.0, -2, 3, 4], [5, 6, 7, -8]], [[0.5, 0, 0, 0], [9, 9, 9, 9]]])
    for tensor in (*pool.keys, *pool.values):
        tensor[1:3] = stored(rows, torch.int8)
    pool.move(np.array([1, 2]), np.array([2, 5]))
    pool.check()
    for tensor in (*pool.keys, *pool.values):
        assert torch.equal(tensor[[2, 5]], stored(rows, torch.int8))
        assert torch.allclose(widened(tensor[[2, 5]], 4), rows, atol=8 / 254)


def test_a_scale_in_the_null_slot_is_found() -> None:
    pool = KVPool(2, 3, 1, 4, torch.int8)
    pool.values[1][0, 0, 7] = 63
    with pytest.raises(AssertionError, match=r"slot 0 \(null\): values of layer 1"):
        pool.check()


def test_formats_do_not_share_prefixes() -> None:
    """The identity a store is made with names the format: see build.make_store."""
    config = EngineConfig("m", numerics="float32", cache=CacheConfig(dtype="int8"))
    checkpoint = SimpleNamespace(
        fingerprint=lambda: "f",
        config=SimpleNamespace(num_layers=1, num_kv_heads=1, head_dim=4),
    )
    identities = set()
    for dtype in ("auto", "bfloat16", "int8"):
        changed = replace(config, cache=replace(config.cache, dtype=dtype))
        kv = make_store(changed, checkpoint, 64)  # type: ignore[arg-type]
        identities.add(kv._index.root(""))
    assert len(identities) == 3


@pytest.mark.parametrize("seed", range(20))
def test_move_reads_every_row_before_it_writes_one(seed: int) -> None:
    generator = np.random.default_rng(seed)
    pool = TensorPool(12)
    values = [0, *(1000 + slot for slot in range(1, 12))]
    pool.write(np.arange(1, 12), values[1:])
    count = int(generator.integers(0, 12))
    source = generator.integers(0, 12, count)
    destination = 1 + generator.permutation(11)[:count]
    pool.keys[0][0] = pool.values[0][0] = 0
    if 0 in source:
        source[source == 0] = 1
    expected = list(values)
    for old, new in zip(source, destination, strict=True):
        expected[new] = values[old]
    pool.move(source.astype(np.int64), destination.astype(np.int64))
    assert pool.read(np.arange(1, 12)) == expected[1:]
    pool.check()


def test_move_never_touches_the_null_slot() -> None:
    pool = TensorPool(4)
    with pytest.raises(AssertionError, match="null slot"):
        pool.move(np.array([1]), np.array([0]))


def test_check_names_the_written_null_row() -> None:
    pool = TensorPool(4)
    pool.keys[1][0, 0, 0] = 1
    with pytest.raises(AssertionError, match=r"slot 0 \(null\): keys of layer 1"):
        pool.check()


def test_a_pool_without_a_usable_slot_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 2 slots, got 1"):
        KVPool(1, 1, 1, 1, torch.float32)
