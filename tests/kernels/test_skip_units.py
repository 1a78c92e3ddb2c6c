"""Passes that leave out units: the same bits as a model in which those units add zero.

Unit 2 i is the attention of layer i, 2 i + 1 its MLP. With the weights of its last product set to
zero a unit adds +0 to every row, which moves no bit: that model, run whole, is the oracle.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_rig import HERE, decoder_of
from rig import BASE, assert_same_bits, build, ids_of, line, store, straight, weights

from foreword.model.batch import Batch
from foreword.model.llama import Decoder

DEEP = replace(BASE, num_layers=4, windows=(None, 8, None, 8))
SETS = [(), (2,), (3,), (2, 3), (1, 2, 5, 6), (0, 7), tuple(range(8))]
PLACES = ["torch", "reference", *(f"cpu {isa}" for isa in HERE)]


def model_of(place: str, silent: Iterable[int] = ()) -> Decoder:
    """`silent`: units whose last product has weights of zero."""
    tensors = dict(weights(DEEP))
    for unit in silent:
        part = "mlp.down_proj" if unit % 2 else "self_attn.o_proj"
        name = f"model.layers.{unit // 2}.{part}.weight"
        tensors[name] = torch.zeros_like(tensors[name])
    if place.startswith("cpu "):
        return decoder_of(DEEP, "bfloat16", place.removeprefix("cpu "), 2, tensors)
    return build(DEEP, "bfloat16", place, tensors=tensors)


@pytest.mark.parametrize("skip", SETS, ids=str)
@pytest.mark.parametrize("place", PLACES)
def test_a_unit_left_out_is_a_unit_that_adds_zero(place: str, skip: tuple[int, ...]) -> None:
    """40 rows in three chunks, so keys written by a partial pass are read by the next."""
    ids, slots = ids_of(40, 3), straight(40)
    part, whole = model_of(place), model_of(place, skip)
    first, second = store(part), store(whole)
    for start, stop in ((0, 17), (17, 18), (18, 40)):
        batch = Batch.of([line(ids, slots, start, stop)])
        got = part.forward(batch, first, frozenset(skip))
        assert_same_bits(got, whole.forward(batch, second), f"rows {start} to {stop}")
    part.kernels.close()
    whole.kernels.close()


@pytest.mark.parametrize("place", PLACES)
def test_an_attention_left_out_writes_no_keys(place: str) -> None:
    model, ids, slots = model_of(place), ids_of(20, 4), straight(20)
    kv = store(model)
    model.forward(Batch.of([line(ids, slots, 0, 20)]), kv, frozenset((2, 5)))
    written = [bool(keys.float().abs().sum() > 0) for keys in kv.pool.keys]
    assert written == [True, False, True, True]
    model.kernels.close()


@pytest.mark.parametrize("place", PLACES)
def test_a_partial_pass_leaves_the_next_whole_one_as_it_was(place: str) -> None:
    """The set belongs to one pass; rows do not see each other in it either."""
    model, ids, slots = model_of(place), ids_of(20, 5), straight(20)
    batch = Batch.of([line(ids, slots, 0, 20)])
    wanted = model.forward(batch, store(model)).copy()
    part = model.forward(batch, store(model), frozenset((3, 4))).copy()
    kv = store(model)
    rows = [
        model.forward(Batch.of([line(ids, slots, n, n + 1)]), kv, frozenset((3, 4))).copy()
        for n in range(20)
    ]
    assert_same_bits(np.concatenate(rows), part, "one by one")
    assert_same_bits(model.forward(batch, store(model)), wanted, "whole again")
    assert not np.array_equal(part, wanted)
    model.kernels.close()


@pytest.mark.parametrize("place", [place for place in PLACES if place.startswith("cpu ")])
def test_a_unit_that_is_not_there_is_refused(place: str) -> None:
    model, ids, slots = model_of(place), ids_of(3, 5), straight(3)
    with pytest.raises((IndexError, ValueError)):
        model.forward(Batch.of([line(ids, slots, 0, 3)]), store(model), frozenset((8,)))
    model.kernels.close()
