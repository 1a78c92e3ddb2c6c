"""Trees on the cpu backend: more nodes than a partition has lanes, long branches, any row count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu_rig import cpu, every_isa, needs_native
from rig import VOCAB, assert_same_bits, ids_of, line, store, straight
from test_width_invariance import path_to

from foreword.kv.pool import FORMATS
from foreword.model.batch import Batch, Segment
from foreword.model.llama import Decoder

pytestmark = needs_native

KINDS = [("float32", None), ("bfloat16", None), ("bfloat16", "int8")]


def bushy(rows: int, seed: int, reach: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens and parents of a tree; a parent is at most `reach` rows back: it grows long."""
    random = np.random.default_rng(seed)
    parents = (-1, *(int(random.integers(max(-1, row - reach), row)) for row in range(1, rows)))
    return tuple(random.integers(0, VOCAB, rows).tolist()), parents


def pool_of(model: Decoder, form: str | None) -> Any:
    return store(model, FORMATS[form] if form else None, 900)


@pytest.mark.parametrize(("numerics", "form"), KINDS)
@pytest.mark.parametrize("name", ["llama", "mixed", "qwen3"])
@every_isa
def test_any_tree_gives_the_bits_of_its_lines(
    name: str, numerics: str, form: str | None, isa: str
) -> None:
    """Before, across and at the edge of partitions; alone and beside another; 1 thread or 3."""
    cases = [(0, 150, 5), (100, 40, 3), (128, 20, 60), (250, 7, 2), (121, 64, 8)]
    for seed, (cached, rows, reach) in enumerate(cases):
        ids = ids_of(cached, seed)
        tokens, parents = bushy(rows, seed, reach)
        slots = 1 + np.random.default_rng(seed).permutation(899)[: cached + rows + 9]
        wide = Segment(tokens, parents, cached, slots[: cached + rows], tuple(range(rows)))
        few = Segment((1, 2, 3), (-1, 0, 0), 0, slots[cached + rows :][:3], (0, 1, 2))
        got = []
        for threads, others in ((1, []), (3, [few])):
            model = cpu(name, numerics, isa, threads)
            kv = pool_of(model, form)
            if cached:
                model.forward(Batch.of([line(ids, slots, 0, cached)]), kv)
            got.append(model.forward(Batch.of([*others, wide]), kv)[3 * len(others) :])
        assert_same_bits(got[1], got[0], f"{cached} {rows}: threads and neighbours")
        model = cpu(name, numerics, isa)
        for node in range(rows - 1, -1, -11):
            path = [tokens[index] for index in path_to(parents, node)]
            whole, kv = ids + path, pool_of(model, form)
            place = straight(len(whole))
            if cached:
                model.forward(Batch.of([line(whole, place, 0, cached)]), kv)
            for at in range(cached, len(whole)):
                wanted = model.forward(Batch.of([line(whole, place, at, at + 1)]), kv)
            assert_same_bits(got[0][node], wanted[-1], f"{cached} {rows}: node {node}")
