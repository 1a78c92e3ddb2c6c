"""Every KV format in every backend: the same bits in any arrangement, and int8 as it is defined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cpu_rig import HERE, cpu, decoder_of
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
    weights,
)
from test_width_invariance import path_to, random_tree

from foreword.kernels._kv import stored, widened
from foreword.kv.pool import FORMATS
from foreword.model.batch import Batch, Segment

every_backend = pytest.mark.parametrize("backend", ["reference", "torch", *HERE])
MODES = [
    ("llama", "float32", "int8"), ("qwen3", "bfloat16", "int8"), ("mixed", "bfloat16", "int8"),
    ("biased", "float32", "bfloat16"), ("qwen2", "bfloat16", "float32"),
]  # fmt: skip
every_mode = pytest.mark.parametrize(("name", "numerics", "form"), MODES)


def model_of(name: str, numerics: str, backend: str, threads: int = 1) -> Any:
    if backend == "reference":
        return decoder(name, numerics, backend)
    if backend == "torch":
        return decoder(name, numerics, threads=threads)
    return cpu(name, numerics, backend, threads)


@every_backend
@every_mode
def test_any_arrangement_gives_the_bits_of_plain_decoding(
    name: str, numerics: str, form: str, backend: str
) -> None:
    """Chunks, scattered slots, threads, and a ragged tree beside another over a pool of NaN."""
    model, dtype = model_of(name, numerics, backend), FORMATS[form]
    ids = ids_of(40, 3)
    wanted = one_by_one(model, ids, store(model, dtype))
    for sizes in ([40], [16, 3]):
        got = in_blocks(model, ids, sizes, store(model, dtype))
        assert_same_bits(got, wanted, f"chunks {sizes}")
    slots = np.random.default_rng(1).permutation(np.arange(1, SLOTS))
    threaded = model_of(name, numerics, backend, 2)
    got = in_blocks(threaded, ids, [11], store(model, dtype), slots[:40])
    assert_same_bits(got, wanted, "scattered, 2 threads")

    tokens, parents = random_tree(12, 8)
    other, other_parents = random_tree(7, 9)
    kv = store(model, dtype)
    for tensor in (*kv.pool.keys, *kv.pool.values):
        rows = torch.full((SLOTS - 1, *tensor.shape[1:-1], model.config.head_dim), float("nan"))
        tensor[1:] = stored(rows, dtype)
    in_blocks(model, ids, [40], kv, slots[:52])
    segments = [
        Segment(other, other_parents, 0, slots[100:107], ()),
        Segment(tokens, parents, 40, slots[:52], tuple(range(12))),
    ]
    got = model.forward(Batch.of(segments), kv)
    kv.pool.check()
    for node in (0, 5, 11):
        path = [tokens[index] for index in path_to(parents, node)]
        alone = one_pass(model, [*ids, *path], store(model, dtype))[-1]
        assert_same_bits(got[node], alone, f"node {node}")


@every_backend
def test_int8_rows_are_the_float_rows_by_the_formula(backend: str) -> None:
    """Layer 0 sees no attention before it: its int8 rows are exactly those of its float rows."""
    model, ids = model_of("qwen3", "float32", backend), ids_of(9, 2)
    plain, small = store(model, torch.float32), store(model, torch.int8)
    one_pass(model, ids, plain)
    one_pass(model, ids, small)
    dim = model.config.head_dim
    for exact, rounded in ((plain.pool.keys[0], small.pool.keys[0]),
                           (plain.pool.values[0], small.pool.values[0])):  # fmt: skip
        x, got = exact[1:10].numpy(), rounded[1:10]
        scale = (np.abs(x).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
        q = np.clip(np.rint(x / scale), -127, 127).astype(np.int8)
        assert np.array_equal(got[..., :dim].numpy(), q)
        assert np.array_equal(got[..., dim:].contiguous().view(torch.float32).numpy(), scale)


@every_backend
@pytest.mark.parametrize("form", ["int8", "bfloat16"])
def test_a_row_that_is_not_finite_stays_alone(form: str, backend: str) -> None:
    """A sick value amid a chain: rows before it are as they were, its own and later ones are not
    finite. Sequences beside it do not notice."""
    model, dtype = model_of("llama", "bfloat16", backend), FORMATS[form]
    ids = ids_of(12)
    kv = store(model, dtype)
    wanted = one_pass(model, ids, kv)
    mine = model.forward(
        Batch.of([line(ids_of(7, 1), straight(7, 100), 0, 7)]), store(model, dtype)
    )
    sick = store(model, dtype)
    in_blocks(model, ids[:6], [6], sick)
    for tensor in sick.pool.values:
        tensor[3] = stored(
            torch.full((*tensor.shape[1:-1], model.config.head_dim), torch.inf), dtype
        )
    segments = [line(ids, straight(12), 6, 12), line(ids_of(7, 1), straight(7, 100), 0, 7)]
    got = model.forward(Batch.of(segments), sick)
    assert not np.isfinite(got[:6]).any()
    assert_same_bits(got[6:], mine)
    assert np.isfinite(wanted).all()


@pytest.mark.parametrize("isa", HERE)
@pytest.mark.parametrize("form", list(FORMATS))
def test_rows_before_one_that_is_not_finite_do_not_notice(form: str, isa: str) -> None:
    """In one pass, in one partition: what a row does not see is not multiplied by zero."""
    tensors = {key: tensor.clone() for key, tensor in weights(BASE).items()}
    tensors["model.embed_tokens.weight"][90] = torch.inf
    model, dtype = decoder_of(BASE, "float32", isa, 1, tensors), FORMATS[form]
    ids = [token % 90 for token in ids_of(30, 6)]
    wanted = one_by_one(model, ids, store(model, dtype))[:20]
    got = one_pass(model, [*ids[:20], 90, *ids[20:]], store(model, dtype))
    columns = np.arange(got.shape[1]) != 90  # the head is tied: its row is infinite, too
    assert_same_bits(got[:20, columns], wanted[:, columns])
    assert not np.isfinite(got[20:]).any()


@every_backend
def test_int8_is_near_float32(backend: str) -> None:
    """Its own error is that of 8 bits: about 1 % of the logits' spread on random weights."""
    model, ids = model_of("llama", "float32", backend), ids_of(60, 5)
    got = one_pass(model, ids, store(model, torch.int8))
    wanted = one_pass(model, ids, store(model, torch.float32))
    difference = np.sqrt(np.mean((got - wanted) ** 2)) / np.sqrt(np.mean(wanted**2))
    assert 0 < difference < 0.03


@pytest.mark.parametrize("isa", HERE)
def test_backend_cpu_is_near_the_reference_in_every_format(isa: str) -> None:
    """The tile path splits queries and weights in two: errors of 16 bits, not of 8."""
    ids = ids_of(140, 4)
    truth = build(CONFIGS["qwen3"], "float32", "reference", compute=torch.float64)
    for form, dtype in FORMATS.items():
        got = one_pass(cpu("qwen3", "float32", isa), ids, store(truth, dtype))
        wanted = one_pass(truth, ids, store(truth, dtype))
        difference = np.sqrt(np.mean((got - wanted) ** 2)) / np.sqrt(np.mean(wanted**2))
        assert difference < 3e-3, form  # a rounding to bfloat16 or int8 may fall the other way


def test_rows_in_int8_round_half_to_even_and_keep_what_is_not_finite() -> None:
    x = torch.tensor(
        [[127.0, 0.5, 1.5, -2.5], [0, 0, 0, 0], [1, torch.inf, 0, 0], [torch.nan, 1, 0, 0]]
    )
    got = stored(x, torch.int8)
    assert got[0, :4].tolist() == [127, 0, 2, -2]
    back = widened(got, 4)
    assert back[0].tolist() == [127, 0, 2, -2]
    assert not back[1].any()
    assert not back[2:].isfinite().any()
