"""Blocks of the quantised GGUF types -> GroupedInt, without the loss of a bit.

Each type is a small function from raw blocks [blocks, bytes] to integers [blocks, values]; where
they lie in a block is the published layout, tested value by value against gguf-py. `dequantize()`
of the result equals gguf-py's bit for bit for every type. Q2_K and Q3_K become 4 bits wide.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from foreword import machine
from foreword.model.weights.grouped import GroupedInt

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_CHUNK = 1 << 18  # bytes of blocks unpacked at a time: they stay in cache
_ROWS = 256


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a chunk of blocks holds, one row a block; names as in GroupedInt."""

    q: Bytes  # [blocks, values], two's complement where the type is signed
    scale: Bytes  # [blocks, 2], float16; of the super level in a K type
    offset: Bytes | None = None
    sub_scale: Bytes | None = None  # [blocks, groups]
    sub_offset: Bytes | None = None


@dataclass(frozen=True, slots=True)
class _Type:
    bits: int
    group: int
    signed: bool
    unpack: Callable[[Bytes], _Parts]
    sub_bits: int = 0
    signed_sub: bool = False


def grouped(raw: Bytes, kind: str, shape: tuple[int, ...]) -> GroupedInt:
    """`raw`: all bytes of a tensor of type `kind` (a name in TYPES) and `shape` (out, in)."""
    found, rows = TYPES[kind], shape[0]
    size, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = raw.reshape(-1, block_bytes)
    step = max(1, _CHUNK // block_bytes)
    sample = _pieces(found.unpack(blocks[:1]))
    whole = {
        name: np.empty((len(blocks), part.shape[1]), dtype=np.uint8)
        for name, part in sample.items()
    }

    def unpack(here: slice) -> None:
        for name, part in _pieces(found.unpack(blocks[here])).items():
            whole[name][here] = part

    in_parallel(unpack, len(blocks), step)
    assert whole["q"].shape[1] == size
    tensors = {name: torch.from_numpy(part.reshape(rows, -1)) for name, part in whole.items()}
    q = tensors["q"].view(torch.int8) if found.signed else tensors["q"]
    scale, offset = tensors["scale"].view(torch.float16), tensors.get("offset")
    half = None if offset is None else offset.view(torch.float16)
    if "sub_scale" not in tensors:
        return GroupedInt(found.bits, found.group, found.signed, q, scale=scale, offset=half)
    sub_scale = tensors["sub_scale"]
    return GroupedInt(
        found.bits,
        found.group,
        found.signed,
        q,
        super_scale=scale,
        sub_scale=sub_scale.view(torch.int8) if found.signed_sub else sub_scale,
        super_offset=half,
        sub_offset=tensors.get("sub_offset"),
        sub_bits=found.sub_bits,
    )


def in_parallel(work: Callable[[slice], None], count: int, step: int = _ROWS) -> None:
    """`work` on `step` of `count` things at a time, on all processors: numpy lets go of the
    interpreter while it computes."""
    slices = [slice(start, min(start + step, count)) for start in range(0, count, step)]
    threads = min(machine.num_threads(), len(slices))
    if threads <= 1:
        for here in slices:
            work(here)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, slices))


def _pieces(parts: _Parts) -> dict[str, Bytes]:
    """What the type has, by name."""
    named = {name: getattr(parts, name) for name in _Parts.__dataclass_fields__}
    return {name: part for name, part in named.items() if part is not None}


def _fields(packed: Bytes, bits: int, width: int) -> Bytes:
    """Split bytes into fields of `bits`: each run of `width` bytes gives its lowest fields first,
    then its next, and so on. [blocks, bytes] -> [blocks, bytes * 8 // bits]."""
    blocks, count = packed.shape
    per_byte, words = 8 // bits, width // 8
    runs = np.ascontiguousarray(packed).view(np.uint64).reshape(blocks, count // width, words)
    mask = np.uint64(0x0101010101010101 * ((1 << bits) - 1))
    out = np.empty((blocks, count // width, per_byte, words), dtype=np.uint64)
    for place in range(per_byte):
        np.bitwise_and(runs >> np.uint64(place * bits), mask, out=out[:, :, place])
    return out.reshape(blocks, -1).view(np.uint8)


def _bits(packed: Bytes) -> Bytes:
    """One bit a value, lowest first. [blocks, bytes] -> [blocks, 8 * bytes] of 0 and 1."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=1, bitorder="little")


def _negated(halves: Bytes) -> Bytes:
    """float16 with the sign turned: the K types subtract their offset."""
    return halves ^ np.array([0, 0x80], dtype=np.uint8)


def _six_bit_pairs(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 12 bytes of Q4_K and Q5_K: 8 scales and 8 offsets of 6 bits, each [blocks, 8]."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    offsets = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return scales, offsets


def _q4_0(raw: Bytes) -> _Parts:
    return _Parts(_fields(raw[:, 2:], 4, 16) - np.uint8(8), raw[:, :2])


def _q4_1(raw: Bytes) -> _Parts:
    return _Parts(_fields(raw[:, 4:], 4, 16), raw[:, :2], raw[:, 2:4])


def _q5_0(raw: Bytes) -> _Parts:
    q = _fields(raw[:, 6:], 4, 16) | (_bits(raw[:, 2:6]) << np.uint8(4))
    return _Parts(q - np.uint8(16), raw[:, :2])


def _q5_1(raw: Bytes) -> _Parts:
    q = _fields(raw[:, 8:], 4, 16) | (_bits(raw[:, 4:8]) << np.uint8(4))
    return _Parts(q, raw[:, :2], raw[:, 2:4])


def _q8_0(raw: Bytes) -> _Parts:
    return _Parts(raw[:, 2:], raw[:, :2])


def _q2_k(raw: Bytes) -> _Parts:
    return _Parts(
        _fields(raw[:, 16:80], 2, 32),
        raw[:, 80:82],
        _negated(raw[:, 82:84]),
        raw[:, :16] & np.uint8(15),
        raw[:, :16] >> np.uint8(4),
    )


def _q3_k(raw: Bytes) -> _Parts:
    q = _fields(raw[:, 32:96], 2, 32) | (_fields(raw[:, :32], 1, 32) << np.uint8(2))
    low, high = _fields(raw[:, 96:104], 4, 8), raw[:, 104:108]
    pairs = np.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=1)
    sub_scale = (low | (pairs << np.uint8(4))) - np.uint8(32)
    return _Parts(q - np.uint8(4), raw[:, 108:110], None, sub_scale)


def _q4_k(raw: Bytes) -> _Parts:
    scales, offsets = _six_bit_pairs(raw[:, 4:16])
    return _Parts(_fields(raw[:, 16:], 4, 32), raw[:, :2], _negated(raw[:, 2:4]), scales, offsets)


def _q5_k(raw: Bytes) -> _Parts:
    scales, offsets = _six_bit_pairs(raw[:, 4:16])
    q = _fields(raw[:, 48:], 4, 32) | (_fields(raw[:, 16:48], 1, 32) << np.uint8(4))
    return _Parts(q, raw[:, :2], _negated(raw[:, 2:4]), scales, offsets)


def _q6_k(raw: Bytes) -> _Parts:
    q = _fields(raw[:, :128], 4, 64) | (_fields(raw[:, 128:192], 2, 32) << np.uint8(4))
    return _Parts(q - np.uint8(32), raw[:, 208:210], None, raw[:, 192:208])


TYPES = {
    "Q4_0": _Type(4, 32, True, _q4_0),
    "Q4_1": _Type(4, 32, False, _q4_1),
    "Q5_0": _Type(5, 32, True, _q5_0),
    "Q5_1": _Type(5, 32, False, _q5_1),
    "Q8_0": _Type(8, 32, True, _q8_0),
    "Q2_K": _Type(4, 16, False, _q2_k, sub_bits=4),
    "Q3_K": _Type(4, 16, True, _q3_k, sub_bits=6, signed_sub=True),
    "Q4_K": _Type(4, 32, False, _q4_k, sub_bits=6),
    "Q5_K": _Type(5, 32, False, _q5_k, sub_bits=6),
    "Q6_K": _Type(6, 16, True, _q6_k, sub_bits=8, signed_sub=True),
}
