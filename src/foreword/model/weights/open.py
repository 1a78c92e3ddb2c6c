"""One door for every way to name a model: path, built-in name, or hub reference."""

from __future__ import annotations

from pathlib import Path

from foreword.errors import WeightsError
from foreword.model.weights import download, hub
from foreword.model.weights.catalogue import BUILT_INS, built_in
from foreword.model.weights.checkpoint import Checkpoint
from foreword.model.weights.folder import open_folder
from foreword.model.weights.gguf_file import open_gguf_model, part_names


def open_checkpoint(
    name_or_path: str | Path, revision: str | None = None, progress: download.Progress | None = None
) -> Checkpoint:
    """Find, fetch if needed, open and check a model; nothing but headers is read.

    Takes a Hugging Face folder, a .gguf file (any part of a split one), a folder with one GGUF
    model, `org/name` or `org/name:file.gguf` from the hub (`revision`: branch, tag or commit), or
    a built-in name. Something that exists on disk is taken first. Raises WeightsError,
    UnsupportedModel or DownloadError.
    """
    return open_path(locate(name_or_path, revision, progress))


def locate(
    name_or_path: str | Path, revision: str | None = None, progress: download.Progress | None = None
) -> Path:
    """The folder or file on disk, fetched if needed."""
    name, path = str(name_or_path), Path(name_or_path).expanduser()
    if name and path.exists():
        return path
    model = built_in(name)
    if model is not None:
        return download.fetch(model, progress)
    looks_like_path = name.startswith((".", "/", "~")) or "\\" in name
    if isinstance(name_or_path, str) and not looks_like_path:
        match = hub.REFERENCE.fullmatch(name)
        if match is not None and not match["repo"].lower().endswith((".gguf", ".safetensors")):
            return hub.fetch(name, revision, progress)
    known = ", ".join(item.name for item in BUILT_INS)
    raise WeightsError(
        f"{name}: no such file or folder; give a model folder, a .gguf file, org/name from the hub"
        f" or a built-in name ({known})"
    )


def open_path(path: Path) -> Checkpoint:
    """Open what lies on disk: a folder in either layout, or a .gguf file."""
    if path.is_file():
        if path.suffix.lower() == ".gguf" or _begins_with_magic(path):
            return open_gguf_model(path)
        raise WeightsError(
            f"{path}: not a .gguf file; for safetensors give the folder that holds config.json"
        )
    if (path / "config.json").is_file():
        return open_folder(path)
    files = sorted(file for file in path.iterdir() if file.suffix.lower() == ".gguf")
    models = {part_names(file.name)[0]: file for file in files}
    if len(models) > 1:
        names = ", ".join(sorted(models)[:20])
        raise WeightsError(f"{path}: holds several models; give the path of one: {names}")
    if not models:
        raise WeightsError(f"{path}: holds neither config.json nor a .gguf file")
    return open_gguf_model(next(iter(models.values())))


def _begins_with_magic(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"
