"""sha256 of large files, remembered in the cache folder by path, size and modification time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from foreword.errors import WeightsError
from foreword.machine import cache_dir

_CHUNK = 1 << 22  # bytes per read


def file_sha256(path: Path) -> str:
    """Hex digest of a file's bytes. Raises WeightsError naming a file that cannot be read."""
    try:
        resolved, stat = path.resolve(strict=True), path.stat()
        key: dict[str, Any] = {
            "path": str(resolved),
            "size": stat.st_size,
            "mtime_ns": stat.st_mtime_ns,
        }
        note = cache_dir() / "hashes" / (hashlib.sha256(key["path"].encode()).hexdigest() + ".json")
        known = _load(note)
        if all(known.get(name) == value for name, value in key.items()) and "sha256" in known:
            return str(known["sha256"])
        digest = _hash(resolved)
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error.strerror})") from error
    with contextlib.suppress(OSError):  # a read-only cache only costs the next start some time
        _save(note, {**key, "sha256": digest})
    return digest


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _load(note: Path) -> dict[str, Any]:
    try:
        content = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _save(note: Path, content: dict[str, Any]) -> None:
    """Written aside and renamed, so that a second process never reads half a note."""
    note.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=note.parent, suffix=".partial", delete=False, encoding="utf-8"
    ) as file:
        json.dump(content, file)
    os.replace(file.name, note)
