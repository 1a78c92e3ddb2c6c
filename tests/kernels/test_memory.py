"""What lies beside a row in memory, and where it lies, cannot reach its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
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

from foreword.model.batch import Batch, Segment

BACKENDS = [("torch", "float32"), ("torch", "bfloat16"), ("reference", "float32")]
each_backend = pytest.mark.parametrize(("backend", "numerics"), BACKENDS)
GARBAGE = [1e30, -3e38, float("nan"), float("inf"), float("-inf")]


def misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, starting 4 bytes past an aligned address."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)
    view = room[1:].view(tensor.shape)
    view.copy_(tensor)
    assert view.data_ptr() % 64 != 0
    return view


def spread(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with other strides: transposed, or every second of a vector."""
    if tensor.dim() == 2:
        return tensor.t().contiguous().t()
    room = torch.zeros(2 * tensor.numel(), dtype=tensor.dtype)
    room[::2] = tensor
    return room[::2]


@each_backend
@pytest.mark.parametrize("change", [misaligned, spread])
@pytest.mark.parametrize("name", ["biased", "qwen3"])
def test_where_the_weights_lie_does_not_matter(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], backend: str, numerics: str
) -> None:
    config = CONFIGS[name]
    moved = {key: change(tensor) for key, tensor in weights(config).items()}
    ids = ids_of(16)  # a whole tile, so that nothing is copied by padding
    wanted = one_pass(decoder(name, numerics, backend), ids)
    model = build(config, numerics, backend, tensors=moved)
    assert_same_bits(one_pass(model, ids), wanted)
    assert_same_bits(in_blocks(model, ids, [5]), wanted)


@each_backend
def test_inputs_handed_over_as_views_do_not_matter(backend: str, numerics: str) -> None:
    """Token ids, positions and slots as strided and misaligned arrays, a pool that is a slice."""
    model, ids = decoder("mixed", numerics, backend), ids_of(21)
    wanted = one_pass(model, ids)
    batch = Batch.of([line(ids, straight(21), 0, 21)])

    def strided(array: np.ndarray) -> np.ndarray:
        room = np.zeros(2 * len(array) + 1, dtype=array.dtype)
        room[1::2] = array
        return room[1::2]

    slots = strided(np.asarray(batch.segments[0].slots))
    segment = Segment(
        batch.segments[0].tokens, batch.segments[0].parents, 0, slots, tuple(range(21))
    )
    views = [strided(getattr(batch, key)) for key in ("token_ids", "positions", "slots")]
    kv = store(model)
    for tensors in (kv.pool.keys, kv.pool.values):
        for layer, tensor in enumerate(tensors):
            room = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)
            tensors[layer] = room[3:].view(tensor.shape)
    got = model.forward(Batch((segment,), *views, strided(batch.logit_rows)), kv)
    assert_same_bits(got, wanted)


def fill(kv: Any, slots: list[int], value: float) -> None:
    """Overwrite slots in every layer; large finite garbage differs from lane to lane."""
    where = torch.tensor(slots)
    for tensor in (*kv.pool.keys, *kv.pool.values):
        noise = torch.linspace(0.5, 1.0, len(slots))[:, None, None]
        tensor[where] = (value * noise).to(tensor.dtype).expand(-1, *tensor.shape[1:])


@each_backend
@pytest.mark.parametrize("value", GARBAGE)
def test_free_slots_and_losing_branches_add_nothing(
    backend: str, numerics: str, value: float
) -> None:
    """drafting.md, section 15: garbage in all that a row does not see; the null slot stays zero."""
    model, ids = decoder("mixed", numerics, backend), ids_of(24, 1)
    wanted = one_by_one(model, ids)
    kv = store(model)
    free = set(range(1, SLOTS))
    fill(kv, sorted(free), value)  # a pool full of garbage: free slots
    slots = np.random.default_rng(5).permutation(np.arange(1, SLOTS))
    assert_same_bits(in_blocks(model, ids[:20], [7], kv, slots[:20]), wanted[:20])
    # a tree with two losing branches whose rows were overwritten, the winner extended after it
    losers = slots[100:103]
    tree = Segment(
        (ids[20], 5, ids[21], 6, 7),
        (-1, 0, 0, 1, 3),
        20,
        np.concatenate([slots[:21], losers[:1], slots[21:22], losers[1:]]),
        (0, 2),
    )
    assert_same_bits(model.forward(Batch.of([tree]), kv), wanted[20:22])
    fill(kv, sorted(free - set(slots[:22].tolist())), value)
    got = model.forward(Batch.of([line(ids, slots[:24], 22, 24)]), kv)
    assert_same_bits(got, wanted[22:])
    kv.pool.check()


@each_backend
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_v95_a_non_finite_row_stays_alone(backend: str, numerics: str, value: float) -> None:
    """Id 7's embedding is broken: rows that hold it break, every other row keeps its bits."""
    config = CONFIGS["qwen3"]
    tensors = dict(weights(config))
    broken = tensors["model.embed_tokens.weight"].clone()
    broken[7] = value
    tensors["model.embed_tokens.weight"] = broken
    model, healthy = build(config, numerics, backend, tensors=tensors), ids_of(18, 2, vocab=7)
    wanted = one_by_one(model, healthy)
    assert np.isfinite(wanted).all()
    ill = [3, 7, 4, 5]
    kv = store(model)
    segments = [
        line(ill, straight(4, 100), 0, 4),
        line(healthy, straight(18), 0, 18),
        # a tree of the same healthy sequence's first tokens with one broken branch
        Segment(
            (healthy[0], 7, healthy[1], 7),
            (-1, 0, 0, 2),
            0,
            straight(4, 200),
            (0, 1, 2, 3),
        ),
    ]
    got = model.forward(Batch.of(segments), kv)
    assert_same_bits(got[4:22], wanted)
    assert_same_bits(got[[22, 24]], wanted[:2])
    assert_same_bits(got[0], one_by_one(model, [3])[0])
    if not np.isfinite(value):
        assert not np.isfinite(got[[1, 2, 3, 23, 25]]).any()
    kv.pool.check()


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_keys_and_values_are_read_in_their_stored_form(backend: str) -> None:
    """float32 numerics over a bfloat16 store: this pass's rows read as earlier ones."""
    model, ids = decoder("llama", "float32", backend), ids_of(30, 3)

    def stored() -> Any:
        return store(model, torch.bfloat16)

    wanted = one_by_one(model, ids, stored())
    assert_same_bits(one_pass(model, ids, stored()), wanted)
    assert_same_bits(in_blocks(model, ids, [4, 9], stored()), wanted)
    tree = Segment(tuple(ids[20:24]), (-1, 0, 1, 2), 20, straight(24), (0, 1, 2, 3))
    kv = stored()
    one_pass(model, ids[:20], kv)
    assert_same_bits(model.forward(Batch.of([tree]), kv), wanted[20:24])
    full = one_by_one(model, ids, store(model, torch.float32))
    assert np.abs(full - wanted)[1:].max() > 0, "rounding the store should be visible"


@pytest.mark.parametrize(("backend", "numerics"), [("torch", "bfloat16"), ("torch", "float32")])
def test_weights_are_copied_at_load(backend: str, numerics: str) -> None:
    tensors = {key: tensor.clone() for key, tensor in weights(BASE).items()}
    model, ids = build(BASE, numerics, backend, tensors=tensors), ids_of(9)
    wanted = one_pass(model, ids)
    for tensor in tensors.values():
        tensor.fill_(float("nan"))
    assert_same_bits(one_pass(model, ids), wanted)
