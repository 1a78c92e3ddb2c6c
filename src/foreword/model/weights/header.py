"""The header of a safetensors file, read and checked without touching the tensors.

Layout: 8 bytes little-endian header length, JSON {name: {dtype, shape, data_offsets}}, data.
A damaged file costs milliseconds and no memory: sizes are compared before anything is allocated.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from foreword.errors import WeightsError

_MAX_HEADER = 100_000_000  # bytes; the limit of the format's own library
_ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor: type name, shape, and its bytes [begin, end) relative to the data's start."""

    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, HeaderEntry]:
    """All tensors of a safetensors file. Raises WeightsError naming the file and the damage."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(64)
            refuse_non_weights(path, first, "safetensors")
            if size < 8:
                raise _damaged(path, f"it is only {size} bytes long")
            length = int.from_bytes(first[:8], "little")
            if length > min(size - 8, _MAX_HEADER):
                raise _damaged(path, f"it declares a header of {length} bytes in {size}")
            file.seek(8)
            raw = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
    entries = {
        name: _entry(path, name, value)
        for name, value in _json(path, raw).items()
        if name != "__metadata__"
    }
    _check_layout(path, entries, size - 8 - length)
    return entries


def refuse_non_weights(path: Path, first: bytes, wanted: str) -> None:
    """Name the usual impostors by their first bytes: empty file, Git LFS pointer, web page."""
    if not first:
        raise WeightsError(f"{path}: not a {wanted} file (it is empty); download it again")
    if first.startswith(b"version https://git-lfs"):
        raise WeightsError(
            f"{path}: not a {wanted} file (Git LFS pointer?); fetch the real file with git lfs pull"
        )
    if first.lstrip().lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        raise WeightsError(f"{path}: not a {wanted} file (a web page was saved); download it again")


def _damaged(path: Path, why: str) -> WeightsError:
    return WeightsError(f"{path}: not a readable safetensors file ({why}); download it again")


def _json(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names: dict[str, Any] = {}
        for name, value in pairs:
            if name in names:
                raise _damaged(path, f"the name {name!r} occurs twice")
            names[name] = value
        return names

    try:
        content = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise _damaged(path, "its header is not JSON") from None
    if not isinstance(content, dict):
        raise _damaged(path, "its header is not a JSON object")
    return content


def _entry(path: Path, name: str, value: Any) -> HeaderEntry:
    if not isinstance(value, dict):
        raise _damaged(path, f"tensor {name!r} is not described")
    kind, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not (isinstance(kind, str) and _sizes(shape) and _sizes(offsets) and len(offsets) == 2):
        raise _damaged(path, f"tensor {name!r} has no valid dtype, shape and data_offsets")
    begin, end = offsets
    item = _ITEM_BYTES.get(kind)  # an unknown kind is refused by name later, if it is needed
    if begin > end or (item is not None and end - begin != item * math.prod(shape)):
        raise _damaged(path, f"tensor {name!r}: {kind} {shape} does not take {end - begin} bytes")
    return HeaderEntry(kind, tuple(shape), begin, end)


def _sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_layout(path: Path, entries: dict[str, HeaderEntry], data_size: int) -> None:
    """Tensors lie one behind the other, without overlap or hole, to the end of the file."""
    position, before = 0, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin < position:
            raise _damaged(path, f"tensor {name!r} overlaps {before!r}")
        if entry.begin > position:
            raise _damaged(path, f"bytes between {before!r} and {name!r} belong to no tensor")
        if entry.end > data_size:
            missing = entry.end - data_size
            raise _damaged(
                path, f"truncated inside tensor {name!r}, at least {missing} bytes short"
            )
        position, before = entry.end, name
    if position != data_size:
        raise _damaged(path, f"{data_size - position} bytes behind the last tensor")
