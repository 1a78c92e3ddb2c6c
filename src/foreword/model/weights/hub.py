"""Fetch a model from the Hugging Face hub into huggingface_hub's own cache.

That library reads HF_TOKEN, HF_HUB_OFFLINE, HF_HOME and the proxy settings. Only the needed files
are downloaded: the small JSON and text files, then the weight files that the index names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from foreword.errors import DownloadError, ForewordError, WeightsError
from foreword.model.weights.download import Progress
from foreword.model.weights.fields import read_json
from foreword.model.weights.folder import INDEX, is_plain_name
from foreword.model.weights.gguf_file import part_names

REFERENCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^:]+\.gguf))?")
_SMALL = [
    "config.json", "generation_config.json", INDEX, "tokenizer*.json", "tokenizer*.jinja",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template*",
]  # fmt: skip
_Result = TypeVar("_Result")


def fetch(reference: str, revision: str | None, progress: Progress | None = None) -> Path:
    """`org/name` -> a folder, `org/name:file.gguf` -> a file. Raises DownloadError."""
    match = REFERENCE.fullmatch(reference)
    assert match is not None, reference
    repo, file = match["repo"], match["file"]
    if file is not None:
        return _files(repo, part_names(file), revision, progress)[0]
    import huggingface_hub  # here: opening local files must not pay for this import

    def small() -> Path:
        found = huggingface_hub.snapshot_download(repo, revision=revision, allow_patterns=_SMALL)
        return Path(found)

    folder = _attempt(repo, small)
    if not (folder / "config.json").is_file():
        return _only_gguf(repo, revision, progress)
    _files(repo, _weight_names(folder), revision, progress)
    return folder


def _weight_names(folder: Path) -> list[str]:
    if not (folder / INDEX).is_file():
        return ["model.safetensors"]
    places = read_json(folder / INDEX).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    if not names or not all(map(is_plain_name, names)):
        raise WeightsError(f"{folder / INDEX}: has no valid weight_map")
    return names


def _files(
    repo: str, names: list[str], revision: str | None, progress: Progress | None
) -> list[Path]:
    from huggingface_hub import hf_hub_download

    paths = []
    for number, name in enumerate(names):
        if progress is not None:
            progress(f"fetching {name} ({number + 1} of {len(names)})", 0, 0)

        def one(name: str = name) -> Path:
            return Path(hf_hub_download(repo, name, revision=revision))

        paths.append(_attempt(f"{repo}:{name}", one))
    return paths


def _only_gguf(repo: str, revision: str | None, progress: Progress | None) -> Path:
    """A repository without config.json may hold GGUF files; one model can be taken unasked."""
    from huggingface_hub import HfApi

    def listing() -> list[str]:
        return list(HfApi().list_repo_files(repo, revision=revision))

    names = sorted(name for name in _attempt(repo, listing) if name.lower().endswith(".gguf"))
    models = {part_names(name)[0] for name in names}
    if len(models) == 1:
        return _files(repo, part_names(names[0]), revision, progress)[0]
    if not models:
        raise DownloadError(f"{repo}: holds neither config.json nor a .gguf file")
    listed = ", ".join(sorted(models)[:20])
    raise DownloadError(f"{repo}: holds several models; choose one as {repo}:FILE from {listed}")


def _attempt(what: str, action: Callable[[], _Result]) -> _Result:
    """Run a hub call; the library and its HTTP client raise many types, all mean one thing here."""
    try:
        return action()
    except ForewordError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DownloadError(
            f"{what}: cannot be fetched from the hub ({type(error).__name__}: {reason:.200});"
            " check the name, HF_TOKEN and the network"
        ) from error
