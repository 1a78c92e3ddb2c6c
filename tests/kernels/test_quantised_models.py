"""A decoder with matrices of every kind: width invariance, threads, hosts, and how far it errs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from quantised_rig import WIDE, floats, mixed, wide
from rig import (
    SLOTS,
    assert_same_bits,
    build,
    ids_of,
    in_blocks,
    line,
    one_by_one,
    one_pass,
    stages,
    store,
    straight,
)

from foreword.errors import KernelUnavailable
from foreword.kernels.reference import ReferenceKernels
from foreword.kernels.torch import TorchKernels
from foreword.model.batch import Batch, Segment
from foreword.model.weights.grouped import GroupedInt

MODES = ("a16", "a8")
BACKENDS = ("torch", "reference")
each_mode = pytest.mark.parametrize("numerics", MODES)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


@each_mode
def test_row_alone_equals_the_row_among_up_to_64(numerics: str) -> None:
    model, ids = wide(numerics), ids_of(21)
    wanted = one_by_one(model, ids)[-1]
    for width in (2, 9, 16, 17, 64):
        kv = store(model)
        one_pass(model, ids[:-1], kv)
        others = [line(ids_of(1, seed), np.array([64 + seed]), 0, 1) for seed in range(width - 1)]
        for place in {0, len(others) // 2, len(others)}:
            segments = [*others[:place], line(ids, straight(21), 20, 21), *others[place:]]
            assert_same_bits(model.forward(Batch.of(segments), kv)[place], wanted, f"{width}")


@each_mode
@each_backend
def test_prefill_decode_and_chunks_agree(numerics: str, backend: str) -> None:
    model, ids = wide(numerics, backend), ids_of(37)
    wanted = one_by_one(model, ids)
    assert_same_bits(one_pass(model, ids), wanted, "one pass")
    assert_same_bits(in_blocks(model, ids, [5, 16, 1]), wanted, "chunks")


@each_mode
def test_a_tree_equals_its_paths(numerics: str) -> None:
    model, ids = wide(numerics), ids_of(12)
    kv = store(model)
    one_pass(model, ids, kv)
    tokens, parents = (5, 6, 7, 8, 9), (-1, 0, 0, 1, 2)
    slots = np.concatenate([straight(12), np.arange(40, 45)])
    got = model.forward(Batch.of([Segment(tokens, parents, 12, slots, tuple(range(5)))]), kv)
    for path in ((0, 1, 3), (0, 2, 4)):
        wanted = one_by_one(model, [*ids, *(tokens[node] for node in path)])[12:]
        assert_same_bits(got[list(path)], wanted)


@each_mode
@each_backend
def test_each_op_computes_a_row_the_same_way_at_every_place(numerics: str, backend: str) -> None:
    model, ids = wide(numerics, backend), ids_of(9)
    kv, other = store(model), store(model)
    alone = dict(stages(model, Batch.of([line(ids, straight(9), 0, 9)]), kv))
    before = line(ids_of(11, 5), np.arange(100, 111), 0, 11)
    both = dict(stages(model, Batch.of([before, line(ids, straight(9), 0, 9)]), other))
    for name, rows in alone.items():
        for mine, theirs in zip(rows, both[name][11:], strict=True):
            assert_same_bits(theirs, mine, name)


@each_mode
def test_threads_do_not_matter(numerics: str) -> None:
    ids = ids_of(40)
    model = build(WIDE, numerics, "torch", threads=3, tensors=mixed())
    got = one_pass(model, ids)
    model.kernels.close()
    assert_same_bits(got, one_pass(wide(numerics), ids))


@each_mode
@each_backend
def test_flush_to_zero_of_the_host_does_not_matter(numerics: str, backend: str) -> None:
    model, ids = wide(numerics, backend), ids_of(9)
    wanted = one_pass(model, ids)
    torch.set_flush_denormal(True)
    try:
        got = one_pass(model, ids)
        built = one_pass(build(WIDE, numerics, backend, tensors=mixed()), ids)
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(got, wanted)
    assert_same_bits(built, wanted)


@each_mode
@each_backend
def test_garbage_in_unseen_slots_does_not_matter(numerics: str, backend: str) -> None:
    model, ids = wide(numerics, backend), ids_of(9)
    kv = store(model)
    for pool in (*kv.pool.keys, *kv.pool.values):
        pool[60:SLOTS] = float("nan")
    assert_same_bits(one_pass(model, ids, kv), one_pass(model, ids))


def spread(part: torch.Tensor) -> torch.Tensor:
    return part.t().contiguous().t() if part.dim() == 2 else part


@each_mode
@each_backend
def test_where_the_weights_lie_does_not_matter(numerics: str, backend: str) -> None:
    moved = {
        name: part._each(spread) if isinstance(part, GroupedInt) else spread(part)
        for name, part in mixed().items()
    }
    model = build(WIDE, numerics, backend, tensors=moved)
    assert_same_bits(one_pass(model, ids_of(16)), one_pass(wide(numerics, backend), ids_of(16)))


def test_a_smaller_vocabulary_is_the_first_rows() -> None:
    from foreword.kernels.ops import RotaryTable
    from foreword.model.llama import Decoder
    from foreword.model.rope import inverse_frequencies

    frequencies = inverse_frequencies(WIDE.rope, WIDE.head_dim, WIDE.max_position)
    table = RotaryTable.build(*frequencies, WIDE.max_position)
    kernels = TorchKernels(WIDE, "a8", table, partition=16)
    short = Decoder(WIDE, kernels, mixed().__getitem__, 70)
    ids = ids_of(9, vocab=70)
    assert_same_bits(one_pass(short, ids), one_pass(wide("a8"), ids)[:, :70])


def logits(numerics: str, backend: str = "torch", **options: object) -> np.ndarray:
    model = wide(numerics, backend, **options)
    return np.concatenate([one_pass(model, ids_of(48, 40)), one_pass(model, ids_of(30, 41))])


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """rms of the difference, as a share of the rms of the logits."""
    gap = np.sqrt(np.mean((one.astype(np.float64) - other) ** 2))
    return float(gap / np.sqrt(np.mean(other.astype(np.float64) ** 2)))


@each_mode
def test_backends_agree_to_rounding(numerics: str) -> None:
    """The same products, the same roundings; what differs is the order of float32 sums."""
    gap = distance(logits(numerics), logits(numerics, "reference"))
    precision = distance(logits(numerics), logits("float32", "reference"))
    print(f"{numerics}: torch to reference {gap:.2e}, to float32 {precision:.2e}")
    assert gap < max(0.5 * precision, 1e-3)


def test_modes_are_as_precise_as_their_names_say() -> None:
    """a16 about as bfloat16 is, a8 within a few percent; neither is float32."""
    truth = logits("float32", "reference")
    gaps = {mode: distance(logits(mode), truth) for mode in ("float32", "bfloat16", "a16", "a8")}
    print(", ".join(f"{mode} {gap:.2e}" for mode, gap in gaps.items()))
    assert gaps["float32"] < 1e-5 < gaps["a16"]
    assert gaps["a16"] < 1.5 * gaps["bfloat16"]
    assert gaps["a16"] < gaps["a8"] < 0.1


@each_backend
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_float_modes_take_quantised_matrices_dequantised(numerics: str, backend: str) -> None:
    got = build(WIDE, numerics, backend, tensors=mixed())
    wanted = build(WIDE, numerics, backend, tensors=floats())
    assert_same_bits(one_pass(got, ids_of(9)), one_pass(wanted, ids_of(9)))


@each_backend
def test_without_quantised_matrices_the_modes_are_about_bfloat16(backend: str) -> None:
    """Products of floats run in bfloat16; only the rounding of what lies between may differ."""
    ids = ids_of(30)
    wanted = one_pass(build(WIDE, "bfloat16", backend, tensors=floats()), ids)
    for numerics in MODES:
        got = one_pass(build(WIDE, numerics, backend, tensors=floats()), ids)
        assert distance(got, wanted) < 1e-2


@pytest.mark.parametrize("kernels", [TorchKernels, ReferenceKernels])
def test_unknown_numerics_are_refused(kernels) -> None:  # type: ignore[no-untyped-def]
    table = wide("a8").kernels
    with pytest.raises(KernelUnavailable, match="no numerics 'a4'"):
        kernels(WIDE, "a4", table)
