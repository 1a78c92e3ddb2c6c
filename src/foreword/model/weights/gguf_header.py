"""The header of a GGUF file: key-value fields and tensor table, checked against the file's size.

Follows the published layout, versions 2 and 3, little-endian. A reader of our own because a header
holds some hundred thousand strings: this one takes a tenth of a second where the general library
takes seconds, and it names the tensor that is cut off. Tests compare both field by field.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.weights.header import refuse_non_weights

_NUMBERS = {
    0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_ALIGNMENT = 32  # bytes, unless the file says otherwise


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table; `shape` in Hugging Face order (rows first)."""

    name: str
    kind: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """An opened file: its path, its mapped bytes, its fields and its tensors in file order."""

    path: Path
    data: mmap.mmap
    metadata: dict[str, Any]
    tensors: tuple[GgufTensor, ...]

    def release(self, tensor: GgufTensor) -> None:
        """Let the system take back the pages of a tensor once it is read: they count as memory of
        ours otherwise. It may be read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            start = tensor.offset // mmap.PAGESIZE * mmap.PAGESIZE
            end = tensor.offset + tensor.num_bytes
            self.data.madvise(mmap.MADV_DONTNEED, start, end - start)


class _Damage(Exception):
    """What is wrong, without the file's name."""


def open_gguf(path: Path) -> GgufFile:
    """Raises WeightsError naming the file and the damage, UnsupportedModel for unknown types."""
    try:
        with path.open("rb") as file:
            first = file.read(64)
            refuse_non_weights(path, first, "GGUF")
            if first[:4] != b"GGUF" or len(first) < 24:
                raise WeightsError(f"{path}: not a GGUF file; download it again")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return _parse(path, data)
    except _Damage as damage:
        raise WeightsError(f"{path}: damaged GGUF file ({damage}); download it again") from None


def _parse(path: Path, data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data, 4)
    version = cursor.number(4)
    if version not in (2, 3):
        raise UnsupportedModel(f"{path}: GGUF version {version} is not supported; 2 and 3 are")
    num_tensors, num_fields = cursor.number(10), cursor.number(10)
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        name = cursor.string()
        if name in metadata:
            raise _Damage(f"the field {name!r} occurs twice")
        metadata[name] = cursor.value(cursor.number(4))
    table = [_row(path, cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _Damage(f"alignment {alignment!r} is not a power of two")
    start = -(-cursor.position // alignment) * alignment
    tensors = tuple(
        GgufTensor(name, kind, shape, start + offset, num_bytes)
        for name, kind, shape, offset, num_bytes in table
    )
    _check_layout(tensors, len(data))
    return GgufFile(path, data, metadata, tensors)


def _row(path: Path, cursor: _Cursor) -> tuple[str, str, tuple[int, ...], int, int]:
    name = cursor.string()
    num_dims = cursor.number(4)
    if not 1 <= num_dims <= 4:
        raise _Damage(f"tensor {name!r} declares {num_dims} dimensions")
    shape = tuple(cursor.number(10) for _ in range(num_dims))[::-1]  # innermost first in the file
    number, offset = cursor.number(4), cursor.number(10)
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedModel(
            f"{path}: tensor {name!r} has unknown type number {number}"
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape and shape[-1] % block:
        raise _Damage(f"tensor {name!r}: rows of {shape[-1]} do not hold whole {kind.name} blocks")
    return name, kind.name, shape, offset, math.prod(shape) // block * block_bytes


def _check_layout(tensors: tuple[GgufTensor, ...], size: int) -> None:
    seen: set[str] = set()
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda item: item.offset):
        if tensor.name in seen:
            raise _Damage(f"the tensor {tensor.name!r} occurs twice")
        seen.add(tensor.name)
        if tensor.offset < end:
            raise _Damage(f"tensor {tensor.name!r} overlaps {before!r}")
        end, before = tensor.offset + tensor.num_bytes, tensor.name
        if end > size:
            raise _Damage(f"truncated inside tensor {tensor.name!r}, at least {end - size} bytes")


class _Cursor:
    """Reads values one behind the other; every length is compared with what is left first."""

    def __init__(self, data: mmap.mmap, position: int) -> None:
        self.data, self.position, self.size = data, position, len(data)

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise _Damage("truncated inside its header")
        self.position += count
        return self.data[self.position - count : self.position]

    def number(self, kind: int) -> Any:
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        data, position, size = self.data, self.position, self.size
        unpack, texts = struct.Struct("<Q").unpack_from, []
        for _ in range(count):
            start = position + 8
            if start > size or (length := unpack(data, position)[0]) > size - start:
                raise _Damage("truncated inside its header")
            position = start + length
            texts.append(data[start:position])
        self.position = position
        try:
            return [text.decode("utf-8") for text in texts]
        except UnicodeDecodeError:
            raise _Damage("a text in its header is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind in _NUMBERS:
            return self.number(kind)
        if kind != _ARRAY:
            raise _Damage(f"unknown field type {kind}")
        inner, count = self.number(4), self.number(10)
        if inner == _STRING:
            if count > (self.size - self.position) // 8:
                raise _Damage("truncated inside its header")
            return self.strings(count)
        if inner not in _NUMBERS:
            raise _Damage(f"unknown array type {inner}")
        dtype = np.dtype(_NUMBERS[inner])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
