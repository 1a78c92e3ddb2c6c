"""Whole passes of the cpu backend: rows do not see each other, on any instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cpu_rig import HERE, cpu, decoder_of, every_isa, needs_native
from quantised_rig import wide
from rig import (
    BASE,
    CONFIGS,
    SLOTS,
    assert_same_bits,
    build,
    decoder,
    ids_of,
    in_blocks,
    line,
    one_by_one,
    one_pass,
    store,
    straight,
)
from test_width_invariance import neighbours, path_to, random_tree

from foreword.errors import KernelUnavailable
from foreword.model.batch import Batch, Segment

pytestmark = needs_native
MODELS = [
    *((name, numerics) for name in CONFIGS for numerics in ("float32", "bfloat16")),
    *(("quantised", numerics) for numerics in ("a16", "a8")),
]
every_model = pytest.mark.parametrize(("name", "numerics"), MODELS)


@every_isa
@every_model
def test_prefill_equals_decode_equals_any_chunking(name: str, numerics: str, isa: str) -> None:
    model, ids = cpu(name, numerics, isa), ids_of(90, 3)
    wanted = one_by_one(model, ids)
    for sizes in ([90], [1, 2, 3, 5, 9], [7], [16], [17, 15], [33], [64, 2]):
        assert_same_bits(in_blocks(model, ids, sizes), wanted, f"chunks {sizes}")
    scattered = np.random.default_rng(1).permutation(np.arange(1, SLOTS))[:90]
    assert_same_bits(in_blocks(model, ids, [11], slots=scattered), wanted, "scattered")


@every_isa
@every_model
def test_threads_do_not_matter(name: str, numerics: str, isa: str) -> None:
    ids, wanted = ids_of(70, 6), one_pass(cpu(name, numerics, isa), ids_of(70, 6))
    for threads in (2, 3):
        model = cpu(name, numerics, isa, threads)
        assert_same_bits(one_pass(model, ids), wanted, f"{threads} threads")
        assert_same_bits(in_blocks(model, ids, [1, 5]), wanted, f"{threads} threads, chunks")


@every_isa
@every_model
def test_row_alone_equals_the_row_among_others(name: str, numerics: str, isa: str) -> None:
    model, ids = cpu(name, numerics, isa), ids_of(21)
    wanted = one_by_one(model, ids)[-1]
    for width in (2, 3, 4, 5, 9, 16, 17, 33, 64, 128):
        kv = store(model)
        one_pass(model, ids[:-1], kv)
        others = neighbours(model, kv, width - 1, width)
        for place in {0, len(others) // 2, len(others)}:
            segments = [*others[:place], line(ids, straight(21), 20, 21), *others[place:]]
            row = sum(len(segment.tokens) for segment in others[:place])
            got = model.forward(Batch.of(segments), kv)[row]
            assert_same_bits(got, wanted, f"row {row} of {width}")


@every_isa
@every_model
def test_tree_nodes_equal_their_own_line(name: str, numerics: str, isa: str) -> None:
    """A ragged tree that crosses a partition; free slots hold garbage that is not finite."""
    model, prefix = cpu(name, numerics, isa), ids_of(60, 7)
    tokens, parents = random_tree(24, 8)
    kv, slots = store(model), np.random.default_rng(2).permutation(np.arange(1, SLOTS))
    for tensor in (*kv.pool.keys, *kv.pool.values):
        tensor[1:] = float("nan")
    other_tokens, other_parents = random_tree(9, 9)
    in_blocks(model, prefix, [60], kv, slots[:84])
    segments = [
        Segment(other_tokens, other_parents, 0, slots[100:109], ()),
        Segment(tokens, parents, 60, slots[:84], tuple(range(24))),
    ]
    got = model.forward(Batch.of(segments), kv)
    for node in range(0, 24, 3):
        path = [tokens[index] for index in path_to(parents, node)]
        wanted = one_pass(model, [*prefix, *path])[-1]
        assert_same_bits(got[node], wanted, f"node {node} at depth {len(path)}")


@every_isa
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_a_long_context(numerics: str, isa: str) -> None:
    """Partitions kept apart and merged at once, or merged as they come: the same bits."""
    model, ids = cpu("llama", numerics, isa), ids_of(400, 11)
    whole = one_pass(model, ids)
    assert_same_bits(in_blocks(model, ids, [129, 100]), whole)
    assert_same_bits(in_blocks(model, ids, [395, 1]), whole)


@every_isa
@pytest.mark.parametrize("name", list(CONFIGS))
def test_error_is_at_most_twice_plain_torch(name: str, isa: str) -> None:
    """float32, against float64 on the same operands; the worst logit of 40 rows."""
    ids = ids_of(40)
    true = build(CONFIGS[name], backend="reference", compute=torch.float64)
    truth = one_pass(true, ids, store(true, torch.float64)).astype(np.float64)

    def error(model: Any) -> float:
        return float(np.sqrt(np.mean((one_pass(model, ids) - truth) ** 2)))

    assert error(cpu(name, "float32", isa)) <= 2 * error(decoder(name, "float32"))


@every_isa
@pytest.mark.parametrize("numerics", ["a8", "a16"])
def test_quantised_model_is_near_the_reference(numerics: str, isa: str) -> None:
    ids = ids_of(24)
    got, wanted = one_pass(cpu("quantised", numerics, isa), ids), None
    wanted = one_pass(wide(numerics, "reference"), ids)
    difference = np.sqrt(np.mean((got - wanted) ** 2)) / np.sqrt(np.mean(wanted**2))
    assert difference < 0.05


@every_isa
def test_denormals_survive_a_host_that_flushes_them(isa: str) -> None:
    ids = ids_of(20)
    tensors = {key: tensor.clone() for key, tensor in __import__("rig").weights(BASE).items()}
    tensors["model.layers.0.self_attn.o_proj.weight"] *= 1e-39
    model = decoder_of(BASE, "float32", isa, 2, tensors)
    wanted = one_pass(model, ids)
    torch.set_flush_denormal(True)
    try:
        kept = torch.full((1,), 1e-39) * 1.0
        got = one_pass(model, ids)
        after = torch.full((1,), 1e-39) * 1.0
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(got, wanted)
    assert not kept.any(), "the host's own flushing"
    assert not after.any(), "and it is put back"


def test_a_row_that_is_not_finite_stays_alone() -> None:
    for isa in HERE:
        model = cpu("llama", "bfloat16", isa)
        kv = store(model)
        one_pass(model, ids_of(12), kv)
        mine = line(ids_of(13), straight(13), 12, 13)
        wanted = model.forward(Batch.of([mine]), kv)[0]
        sick = straight(9, 100)
        in_blocks(model, ids_of(8, 1), [8], kv, sick[:8])
        for tensor in kv.pool.values:
            tensor[103] = float("nan")
        segments = [line(ids_of(9, 1), sick, 8, 9), mine]
        got = model.forward(Batch.of(segments), kv)
        assert not np.isfinite(got[0]).any()
        assert_same_bits(got[1], wanted)


def test_what_is_not_there_is_an_error() -> None:
    with pytest.raises(KernelUnavailable, match="portable, avx2"):
        decoder_of(BASE, "float32", "neon")
    with pytest.raises(KernelUnavailable, match="numerics"):
        decoder_of(BASE, "float16", "portable")
    model = cpu("llama", "float32", "portable")
    with pytest.raises(IndexError, match="token ids"):
        model.forward(Batch.of([line([9999], straight(1), 0, 1)]), store(model))
