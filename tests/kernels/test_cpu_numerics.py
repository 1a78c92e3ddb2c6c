"""The cpu backend's arithmetic: its error, its extremes, and what a host program cannot move.

Every test runs on each instruction set that this machine can force.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from cpu_rig import HERE, cpu, decoder_of, every_isa, kernels_of, needs_native, pack, product
from quantised_rig import WIDE, mixed
from rig import (
    BASE,
    CONFIGS,
    assert_same_bits,
    ids_of,
    in_blocks,
    line,
    one_by_one,
    one_pass,
    store,
    straight,
    weights,
)
from test_error import PROMPTS, measure, plain_error, truth
from test_odd_shapes import ODD

from foreword.model.batch import Batch
from foreword.model.weights.grouped import GroupedInt

pytestmark = needs_native
MODES = ["float32", "bfloat16", "a16", "a8"]


@every_isa
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mistral", "mixed", "qwen2", "qwen3"])
def test_error_is_at_most_twice_plain_pytorchs(name: str, numerics: str, isa: str) -> None:
    """Plain PyTorch in the same precision, against float64; the largest error and the rms."""
    model = cpu(name, numerics, isa)
    got = np.concatenate([one_pass(model, ids) for ids in PROMPTS])
    mine, plain = measure(got, truth(name)), plain_error(name, numerics)
    assert mine[0] <= 2 * plain[0], "largest error"
    assert mine[1] <= 2 * plain[1], "rms error"
    assert mine[1] > 0, "nothing was rounded: not the precision that was asked for"


@every_isa
@pytest.mark.parametrize("numerics", MODES)
@pytest.mark.parametrize("shape", ODD)
def test_odd_shapes_keep_rows_apart(shape: str, numerics: str, isa: str) -> None:
    model, ids = decoder_of(ODD[shape], numerics, isa), ids_of(48, 1)
    wanted = one_by_one(model, ids)
    assert_same_bits(one_pass(model, ids), wanted)
    assert_same_bits(in_blocks(model, ids, [7, 12, 1]), wanted)


# -- extremes ------------------------------------------------------------------------------------


def extremes(bits: int, group: int, signed: bool, columns: int) -> GroupedInt:
    """Rows of the greatest, of the least, and of both values that so many bits hold."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    q = torch.full((24, columns), high, dtype=torch.int8 if signed else torch.uint8)
    q[1::3] = low
    q[2::3, ::2] = low
    q[5, ::3] = low
    scale = torch.ones(24, columns // group, dtype=torch.float16)
    return GroupedInt(bits, group, signed, q, scale=scale)


@every_isa
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 384])
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_integer_sums_are_exact_at_the_extremes(
    bits: int, group: int, signed: bool, isa: str
) -> None:
    """Activations of +-127 against the ends of the range: a step of 16 bits would saturate. With
    s = 1 every value is a whole number below 2^24, so the float32 sums are exact, too."""
    weight = extremes(bits, group, signed, 384)
    packed = pack("a8", isa, weight)
    pattern = torch.full((384,), 127.0)
    mixed_signs = pattern.clone()
    mixed_signs[1::2] = -127.0
    x = torch.stack([pattern, -pattern, mixed_signs, -mixed_signs])
    exact = x.double() @ weight.q.double().t()
    assert exact.abs().max() < 1 << 24
    for width in (1, 3, 17):
        rows = x.repeat(-(-width // 4), 1)[:width]
        got = product("a8", isa, packed, rows, 24).double()
        assert torch.equal(got, exact.repeat(-(-width // 4), 1)[:width]), width


@every_isa
@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_a16_holds_the_integers_exactly(bits: int, isa: str) -> None:
    """Activations of one: the sums are whole numbers and must come out so."""
    weight = extremes(bits, 32, False, 384)
    x = torch.ones(5, 384)
    got = product("a16", isa, pack("a16", isa, weight), x, 24).double()
    assert torch.equal(got, x.double() @ weight.q.double().t())


@every_isa
@pytest.mark.parametrize("numerics", ["a16", "a8"])
def test_scales_at_the_ends_of_float16(numerics: str, isa: str) -> None:
    """The least denormal, the least normal and the greatest: none is flushed or overflows. (Each
    alone: a16 sums by parts, so its error is one of the largest scale of a row.)"""
    q = torch.ones(16, 96, dtype=torch.uint8)
    x = torch.full((2, 96), 127.0)
    for value in (2.0**-24, 2.0**-14, 65504.0):
        weight = GroupedInt(4, 32, False, q, scale=torch.full((16, 3), value).half())
        for group in range(3):
            part = torch.zeros_like(x)
            part[:, 32 * group : 32 * group + 32] = x[:, 32 * group : 32 * group + 32]
            got = product(numerics, isa, pack(numerics, isa, weight), part, 16)
            assert torch.equal(got, torch.full((2, 16), 127.0 * 32 * value))


# -- hosts ---------------------------------------------------------------------------------------


@cache
def faint(numerics: str, isa: str) -> Any:
    """A decoder with denormal numbers: activations in a16 and a8, a weight otherwise."""
    if numerics in ("a16", "a8"):
        tensors = dict(mixed())
        name = "model.layers.0.post_attention_layernorm.weight"
        tensors[name] = tensors[name] * 1e-39
        return decoder_of(WIDE, numerics, isa, 2, tensors)
    tensors = dict(weights(BASE))
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name] = tensors[name] * 1e-39
    return decoder_of(BASE, numerics, isa, 2, tensors)


@every_isa
@pytest.mark.parametrize("numerics", MODES)
def test_a_host_that_flushes_denormals_moves_nothing(numerics: str, isa: str) -> None:
    """In the caller's thread and in the pool's; and the host's own setting comes back."""
    model, ids = faint(numerics, isa), ids_of(20)
    wanted = one_pass(model, ids)
    torch.set_flush_denormal(True)
    try:
        got = one_pass(model, ids)
        decoded = in_blocks(model, ids, [1, 3])
        after = torch.full((1,), 1e-39) * 1.0
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(got, wanted)
    assert_same_bits(decoded, wanted)
    assert not after.any(), "the host's setting is put back"


@every_isa
@pytest.mark.parametrize("numerics", MODES)
@pytest.mark.parametrize("shift", [1, 3, 8])
def test_any_alignment_of_the_kv_pool(shift: int, numerics: str, isa: str) -> None:
    """Keys and values at an address that is a multiple of their element only."""
    model, ids = cpu("quantised" if numerics[0] == "a" else "qwen3", numerics, isa), ids_of(30)
    wanted = one_pass(model, ids)
    kv = store(model)

    def moved(part: torch.Tensor) -> torch.Tensor:
        return torch.zeros(part.numel() + shift, dtype=part.dtype)[shift:].view(part.shape)

    pool = SimpleNamespace(
        keys=[moved(part) for part in kv.pool.keys],
        values=[moved(part) for part in kv.pool.values],
    )
    got = in_blocks(model, ids, [7, 1], SimpleNamespace(pool=pool))
    assert_same_bits(got, wanted)


@every_isa
@pytest.mark.parametrize("numerics", MODES)
def test_any_alignment_of_rows(numerics: str, isa: str) -> None:
    """Inputs and outputs of a product at addresses that are multiples of four bytes only."""
    random = torch.Generator().manual_seed(4)
    weight = torch.randn(41, 96, generator=random)
    held = extremes(4, 32, True, 96) if numerics[0] == "a" else weight
    columns = held.shape[0]
    packed, x = pack(numerics, isa, held), torch.randn(19, 96, generator=random)
    wanted = product(numerics, isa, packed, x, columns)
    kernels = kernels_of(numerics, isa)
    for shift in (1, 2, 5):
        rows = torch.zeros(x.numel() + shift)[shift:].view(x.shape)
        rows[...] = x
        out = torch.zeros(19 * columns + shift)[shift:]
        addresses = rows.data_ptr(), out.data_ptr()
        kernels.native.product(packed, isa, kernels._pool, 19, *addresses)
        assert_same_bits(out.view(19, columns), wanted, f"shift {shift}")


@every_isa
@pytest.mark.parametrize("numerics", MODES)
def test_a_sick_sequence_leaves_the_others_alone(numerics: str, isa: str) -> None:
    """Values that are not finite in one sequence's cache: its rows only."""
    model = cpu("quantised" if numerics[0] == "a" else "llama", numerics, isa)
    kv = store(model)
    one_pass(model, ids_of(12), kv)
    mine = line(ids_of(13), straight(13), 12, 13)
    wanted = model.forward(Batch.of([mine]), kv)[0]
    sick = straight(9, 100)
    in_blocks(model, ids_of(8, 1), [8], kv, sick[:8])
    for value in (float("nan"), float("inf")):
        for tensor in kv.pool.values:
            tensor[103] = value
        for order in (0, 1):
            segments = [line(ids_of(9, 1), sick, 8, 9)]
            segments.insert(order, mine)
            got = model.forward(Batch.of(segments), kv)
            assert not np.isfinite(got[1 - order]).all()
            assert_same_bits(got[order], wanted)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_instruction_set_is_near_the_others(name: str) -> None:
    """Each has bits of its own; none computes another function."""
    ids = ids_of(40)
    results = [one_pass(cpu(name, "float32", isa), ids) for isa in HERE]
    for got in results[1:]:
        assert np.abs(got - results[0]).max() <= 1e-3 * np.abs(results[0]).max()
