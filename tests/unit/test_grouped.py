"""GroupedInt: what a quantised matrix is, and every GGUF type as one, to the last bit."""

from __future__ import annotations

import tracemalloc

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from foreword.model.weights.gguf_grouped import TYPES, grouped
from foreword.model.weights.grouped import GROUPS, GroupedInt, dense

FIELDS = {  # type: bits, group, signed, least and largest integer
    "Q4_0": (4, 32, True, -8, 7),
    "Q4_1": (4, 32, False, 0, 15),
    "Q5_0": (5, 32, True, -16, 15),
    "Q5_1": (5, 32, False, 0, 31),
    "Q8_0": (8, 32, True, -128, 127),
    "Q2_K": (4, 16, False, 0, 3),
    "Q3_K": (4, 16, True, -4, 3),
    "Q4_K": (4, 32, False, 0, 15),
    "Q5_K": (5, 32, False, 0, 31),
    "Q6_K": (6, 16, True, -32, 31),
}
ROWS, COLUMNS = 37, 768  # several chunks are made of much less; a row holds several blocks


def random_bytes(kind: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Any bytes at all: scales that are infinite, not numbers or denormal among them."""
    values, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    shape = (rows, columns // values * size)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def same_floats(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal bits, or both not numbers (whose sign and payload mean nothing)."""
    unlike = one.view(np.uint32) != other.view(np.uint32)
    return bool(np.all(np.isnan(one[unlike]) & np.isnan(other[unlike])))


def test_every_quantised_type_that_can_be_read_has_a_form() -> None:
    assert set(TYPES) == set(FIELDS)


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_v84_dequantising_equals_gguf_py_bit_for_bit(kind: str, seed: int) -> None:
    raw = random_bytes(kind, ROWS, COLUMNS, seed)
    with np.errstate(all="ignore"):
        wanted = gguf.dequantize(raw, Kind[kind])
    made = grouped(raw.reshape(-1), kind, (ROWS, COLUMNS))
    assert same_floats(made.dequantize().numpy(), wanted)
    assert np.isfinite(wanted).mean() > 0.8


@pytest.mark.parametrize("kind", FIELDS)
def test_the_integers_have_the_range_of_their_type(kind: str) -> None:
    bits, group, signed, least, largest = FIELDS[kind]
    raw = random_bytes(kind, ROWS, COLUMNS)
    made = grouped(raw.reshape(-1), kind, (ROWS, COLUMNS))
    assert (made.bits, made.group, made.signed) == (bits, group, signed)
    assert (int(made.q.min()), int(made.q.max())) == (least, largest)
    assert made.has_offset == (kind in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"))


@pytest.mark.parametrize("kind", FIELDS)
def test_no_more_bytes_than_the_file(kind: str) -> None:
    raw = random_bytes(kind, ROWS, COLUMNS)
    made = grouped(raw.reshape(-1), kind, (ROWS, COLUMNS))
    if kind in ("Q2_K", "Q3_K"):
        assert raw.size < made.num_bytes < 1.8 * raw.size  # widened to four bits
    else:
        assert made.num_bytes == raw.size


@pytest.mark.parametrize("kind", FIELDS)
def test_a_bit_of_the_file_is_a_bit_of_the_form(kind: str) -> None:
    """Turning any one bit of a block turns something: nothing that is stored is dropped."""
    raw = random_bytes(kind, 1, 256)
    before = grouped(raw.reshape(-1), kind, (1, 256))
    size = gguf.GGML_QUANT_SIZES[Kind[kind]][1]
    for place in range(8 * size):
        turned = raw.copy()
        turned[0, place // 8] ^= 1 << place % 8
        after = grouped(turned.reshape(-1), kind, (1, 256))
        names = ("q", "scale", "offset", "super_scale", "sub_scale", "super_offset", "sub_offset")
        pairs = [(getattr(before, name), getattr(after, name)) for name in names]
        changed = sum(
            int((one.view(torch.uint8) != other.view(torch.uint8)).sum())
            for one, other in pairs
            if one is not None
        )
        assert changed == 1, (kind, place)


def test_quantised_by_gguf_py_comes_back() -> None:
    weight = np.random.default_rng(3).standard_normal((16, 256)).astype(np.float32)
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        raw = gguf.quantize(weight, Kind[kind])
        made = grouped(raw.reshape(-1), kind, weight.shape)
        assert np.array_equal(made.dequantize().numpy(), gguf.dequantize(raw, Kind[kind]))
        assert np.abs(made.dequantize().numpy() - weight).max() < 0.5


def test_the_source_may_be_read_only_and_misaligned() -> None:
    raw = random_bytes("Q4_K", 4, 512).reshape(-1)
    room = np.zeros(raw.size + 1, np.uint8)
    room[1:] = raw
    shifted = room[1:]
    shifted.flags.writeable = False
    one, other = (grouped(source, "Q4_K", (4, 512)) for source in (raw, shifted))
    assert torch.equal(one.q, other.q)
    assert torch.equal(one.scales().view(torch.int32), other.scales().view(torch.int32))


def test_memory_is_the_result_and_little_more() -> None:
    raw = random_bytes("Q4_K", 2048, 2048)
    tracemalloc.start()
    made = grouped(raw.reshape(-1), "Q4_K", (2048, 2048))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2 * made.q.numel() + 4e6


def example() -> GroupedInt:
    random = torch.Generator().manual_seed(0)
    q = torch.randint(0, 16, (6, 64), generator=random, dtype=torch.uint8)
    scale, offset = (torch.randn(6, 2, generator=random).half() for _ in range(2))
    return GroupedInt(4, 32, False, q, scale=scale, offset=offset)


def test_rows_are_copies_in_the_order_asked_for() -> None:
    whole = example()
    order = torch.tensor([5, 0, 3])
    assert torch.equal(whole.rows(order).dequantize(), whole.dequantize()[order])
    part = whole.rows(slice(1, 3))
    assert torch.equal(part.dequantize(), whole.dequantize()[1:3])
    part.q.zero_()
    assert whole.q[1:3].any()


def test_the_formula() -> None:
    whole = example()
    for row, column in ((0, 0), (3, 31), (5, 63)):
        group = column // 32
        wanted = whole.scale[row, group].float() * whole.q[row, column].float()
        wanted = wanted + whole.offset[row, group].float()
        assert whole.dequantize()[row, column] == wanted
    assert dense(whole).equal(whole.dequantize())
    assert dense(whole.dequantize()).equal(whole.dequantize())
    assert GROUPS == (16, 32, 64, 128)


def test_zero_points_are_exact() -> None:
    """offset = -(scale * zero) in float32 loses nothing of a float16 scale."""
    random = torch.Generator().manual_seed(0)
    q = torch.randint(0, 256, (32, 128), generator=random, dtype=torch.uint8)
    zero = torch.randint(0, 256, (32, 1), generator=random, dtype=torch.uint8)
    scale = torch.rand(32, 1, generator=random).half()
    made = GroupedInt(8, 128, False, q, scale=scale, zero=zero, zero_bits=8)
    wanted = scale.double() * (q.double() - zero.double())
    assert torch.equal(made.dequantize().double(), wanted)
    assert made.num_bytes == 32 * (128 + 2 + 1)
