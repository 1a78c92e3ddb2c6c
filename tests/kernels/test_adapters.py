"""Rows with and without adapters in one pass: right, and blind to each other, on every backend.

What is right: a model with W + scale * B A merged in float64. What a row may depend on: its own
numbers and its own adapter; a row without one has the bits of a model that knows no adapter.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from cpu_rig import HERE, decoder_of
from quantised_rig import WIDE, mixed
from rig import (
    CONFIGS,
    VOCAB,
    assert_same_bits,
    build,
    ids_of,
    line,
    one_pass,
    store,
    straight,
    weights,
)
from test_width_invariance import neighbours, path_to, random_tree

from adapter_files import factors, merged
from foreword.model.batch import Batch, Segment
from foreword.model.config import ModelConfig
from foreword.model.llama import Decoder
from foreword.model.weights.grouped import dense

BACKENDS = ["reference", "torch", *HERE]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
# Ranks that are no multiple of a vector or of four, and projections that some adapters leave out.
RANKS: dict[str, Any] = {
    "full": 4,
    "ragged": {"query": 1, "key": 7, "value": 16, "output": 5, "gate": 3, "up": 19, "down": 2},
    "some": {"query": 6, "down": 17},
}


def shape_of(name: str) -> ModelConfig:
    return WIDE if name == "quantised" else CONFIGS[name]


def fresh(name: str, numerics: str, backend: str, threads: int = 1) -> Decoder:
    """A decoder that knows no adapter yet."""
    config = shape_of(name)
    tensors = mixed() if name == "quantised" else None
    if backend in HERE:
        return decoder_of(config, numerics, backend, threads, tensors)
    return build(config, numerics, backend, threads, tensors=tensors)


def loaded(model: Decoder) -> Decoder:
    """With one adapter of each kind of RANKS."""
    for seed, (kind, ranks) in enumerate(RANKS.items()):
        model.load_adapter(kind, factors(model.config, seed, ranks))
    return model


@cache
def made(name: str, numerics: str, backend: str) -> Decoder:
    """Shared; tests never change it."""
    return loaded(fresh(name, numerics, backend))


@cache
def truth(name: str, kind: str | None, ids: tuple[int, ...]) -> np.ndarray:
    """Merged in float64, computed in float64: float32 [ids, vocab]."""
    config = shape_of(name)
    tensors = {key: dense(value).double() for key, value in _raw(name).items()}
    if kind is not None:
        tensors = merged(tensors, factors(config, list(RANKS).index(kind), RANKS[kind]))
    model = build(config, backend="reference", compute=torch.float64, tensors=tensors)
    return one_pass(model, ids)


def _raw(name: str) -> dict[str, Any]:
    return mixed() if name == "quantised" else weights(CONFIGS[name])


def of(segment: Segment, adapter: str | None) -> Segment:
    return replace(segment, adapter=adapter)


def under(model: Decoder, ids: list[int], adapter: str | None, sizes: list[int]) -> np.ndarray:
    """`ids` alone in chunks: float32 [len(ids), vocab]."""
    kv, slots, out, start, turn = store(model), straight(len(ids)), [], 0, 0
    while start < len(ids):
        stop = min(start + sizes[turn % len(sizes)], len(ids))
        segment = of(line(ids, slots, start, stop), adapter)
        out.append(model.forward(Batch.of([segment]), kv))
        start, turn = stop, turn + 1
    return np.concatenate(out)


@pytest.mark.parametrize("kind", list(RANKS))
@pytest.mark.parametrize("name", ["biased", "qwen3", "quantised"])
@every_backend
def test_an_adapter_is_its_merged_weights(name: str, kind: str, backend: str) -> None:
    ids = tuple(ids_of(23))
    wanted, without = truth(name, kind, ids), truth(name, None, ids)
    got = under(made(name, "float32", backend), list(ids), kind, [len(ids)])
    assert np.abs(got - wanted).mean() < 1e-4 * np.abs(wanted - without).mean()


LOW = [("biased", "bfloat16"), ("qwen3", "bfloat16"), ("quantised", "a16"), ("quantised", "a8")]


@pytest.mark.parametrize(("name", "numerics"), LOW)
@every_backend
def test_low_precision_adds_the_same_within_its_rounding(
    name: str, numerics: str, backend: str
) -> None:
    """The error with an adapter is about that of the mode without one, and far from what the
    adapter changes."""
    ids = tuple(ids_of(23))
    wanted, without = truth(name, "full", ids), truth(name, None, ids)
    model = made(name, numerics, backend)
    error = np.abs(under(model, list(ids), "full", [23]) - wanted).mean()
    own_error = np.abs(under(model, list(ids), None, [23]) - without).mean()
    assert error < 2.5 * own_error
    assert error < 0.35 * np.abs(wanted - without).mean()


SMALL = [("biased", "float32"), ("qwen3", "bfloat16"), ("quantised", "a16"), ("quantised", "a8")]
some_models = pytest.mark.parametrize(
    ("backend", "name", "numerics"),
    [
        (backend, *model)
        for backend in BACKENDS
        for model in SMALL
        if backend != "reference" or model[0] != "quantised"  # slow, and nothing of its own
    ],
)


@some_models
def test_rows_without_an_adapter_have_the_bits_of_a_model_without(
    name: str, numerics: str, backend: str
) -> None:
    ids = ids_of(12)
    bare, model = fresh(name, numerics, backend), made(name, numerics, backend)
    wanted = one_pass(bare, ids)
    assert_same_bits(under(model, ids, None, [12]), wanted, "loaded and unused")
    for width in (1, 3, 20):
        kv = store(model)
        others = [of(part, "ragged") for part in neighbours(model, kv, width, width)]
        mine = line(ids, straight(12), 0, 12)
        got = model.forward(Batch.of([*others, mine]), kv)[-12:]
        assert_same_bits(got, wanted, f"beside {width} rows with an adapter")


@some_models
def test_a_row_depends_on_its_own_adapter_only(name: str, numerics: str, backend: str) -> None:
    """Alone, one at a time, is the definition; then among rows of others at every width."""
    model, ids = made(name, numerics, backend), ids_of(14)
    names = [*RANKS, None]
    wanted = {name: under(model, ids, name, [1]) for name in names}
    for left in names:
        for right in names:
            if left != right:
                assert (wanted[left] != wanted[right]).any()
    for sizes in ([14], [3, 1, 5], [4, 6]):
        for kind in RANKS:
            got = under(model, ids, kind, sizes)
            assert_same_bits(got, wanted[kind], f"{kind} in chunks {sizes}")
    widths = (2, 5, 17) if backend == "reference" else (2, 3, 4, 5, 9, 16, 17, 33, 64)
    for width in widths:
        kv = store(model)
        prefix = [
            of(line(ids, straight(13, 1 + 13 * i), 0, 13), kind) for i, kind in enumerate(names)
        ]
        model.forward(Batch.of(prefix), kv)
        slots = {kind: np.append(straight(13, 1 + 13 * i), 55 + i) for i, kind in enumerate(names)}
        others = neighbours(model, kv, width, width)
        others = [of(part, names[turn % 4]) for turn, part in enumerate(others)]
        mine = [of(line(ids, slots[kind], 13, 14), kind) for kind in names]
        rows = sum(len(part.tokens) for part in others)
        for batch, first in (([*mine, *others], 0), ([*others, *reversed(mine)], rows)):
            got = model.forward(Batch.of(batch), kv)[first : first + 4]
            order = names if first == 0 else names[::-1]
            for row, kind in zip(got, order, strict=True):
                assert_same_bits(row, wanted[kind][-1], f"{kind} beside {width} rows")


@some_models
def test_tree_nodes_under_an_adapter_equal_their_own_line(
    name: str, numerics: str, backend: str
) -> None:
    model, prefix = made(name, numerics, backend), ids_of(9, 7)
    tokens, parents = random_tree(13, 8)
    kv, slots = store(model), np.random.default_rng(2).permutation(np.arange(1, 200))
    model.forward(Batch.of([of(line(prefix, slots[:9], 0, 9), "ragged")]), kv)
    tree = Segment(tokens, parents, 9, slots[: 9 + 13], tuple(range(13)), "ragged")
    other = Segment(tokens[:4], parents[:4], 0, slots[100:104], (), "full")
    got = model.forward(Batch.of([other, tree]), kv)
    for node in range(0, 13, 3):
        path = [tokens[index] for index in path_to(parents, node)]
        wanted = under(model, [*prefix, *path], "ragged", [len(prefix) + len(path)])[-1]
        assert_same_bits(got[node], wanted, f"node {node}")


@some_models
def test_threads_do_not_matter(name: str, numerics: str, backend: str) -> None:
    ids = ids_of(20)
    wanted = under(made(name, numerics, backend), ids, "ragged", [20])
    for threads in (2, 3):
        model = loaded(fresh(name, numerics, backend, threads))
        try:
            for sizes in ([20], [1, 2], [4, 5]):
                assert_same_bits(under(model, ids, "ragged", sizes), wanted, f"{threads}, {sizes}")
        finally:
            model.kernels.close()


@pytest.mark.parametrize("isa", HERE)
def test_attention_that_threads_share_feeds_adapters_alike(isa: str) -> None:
    """Several partitions of keys: a single row is then merged from what threads did."""
    ids = ids_of(300)
    wanted = under(made("biased", "bfloat16", isa), ids, "ragged", [300])
    for threads in (1, 3):
        model = loaded(fresh("biased", "bfloat16", isa, threads))
        try:
            for sizes in ([270, 1], [140, 3, 150, 2, 1]):
                got = under(model, ids, "ragged", sizes)
                assert_same_bits(got, wanted, f"{threads} threads, {sizes}")
        finally:
            model.kernels.close()


@every_backend
def test_a_row_that_is_not_finite_stays_alone(backend: str) -> None:
    """An adapter whose numbers overflow reaches no row but its own."""
    model, ids = loaded(fresh("biased", "float32", backend)), ids_of(6)
    wanted = under(model, ids, "full", [6])
    model.load_adapter("huge", factors(CONFIGS["biased"], 5, 4, scale=3e38))
    kv = store(model)
    bad = of(line(ids_of(5, 9), straight(5, 100), 0, 5), "huge")
    got = model.forward(Batch.of([bad, of(line(ids, straight(6), 0, 6), "full"), bad]), kv)
    assert not np.isfinite(got[:5]).all()
    assert_same_bits(got[5:11], wanted)


@every_backend
def test_unloading_and_loading_again(backend: str) -> None:
    model, ids = loaded(fresh("biased", "float32", backend)), ids_of(5)
    first = under(model, ids, "full", [5])
    model.unload_adapter("full")
    model.load_adapter("full", factors(CONFIGS["biased"], 9, 2))
    assert (under(model, ids, "full", [5]) != first).any()
    assert first.shape[1] == VOCAB
