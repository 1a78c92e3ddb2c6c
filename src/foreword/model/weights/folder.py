"""A Hugging Face folder (config.json beside one or several safetensors files) -> Checkpoint.

When there is an index, it alone says which file holds a tensor; other files are not read. Tied
heads: an `lm_head.weight` in the files is used even where the config says tied (with a warning if
it differs from the embedding); without one the embedding serves, unless the config says untied.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from foreword.errors import WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights.check import check, without_harmless
from foreword.model.weights.checkpoint import Checkpoint, StoredTensor
from foreword.model.weights.fields import read_json
from foreword.model.weights.header import read_header
from foreword.model.weights.hf_config import (
    end_tokens,
    generation_defaults,
    model_config,
    quantization_config,
)
from foreword.model.weights.quantised_folder import (
    files_of,
    whole_matrices,
    without_zero_biases,
)

INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

log = logging.getLogger(__name__)


def open_folder(folder: Path) -> Checkpoint:
    """Open and check. Raises WeightsError naming the file or tensor at fault."""
    raw = read_json(folder / "config.json")
    generation_file = folder / "generation_config.json"
    generation = read_json(generation_file) if generation_file.is_file() else {}
    config = model_config(raw, str(folder / "config.json"))
    eos = end_tokens(raw.get("eos_token_id"), str(folder / "config.json"))
    eos |= end_tokens(generation.get("eos_token_id"), str(generation_file))
    tensors = without_harmless(_tensors(folder))
    files = files_of(tensors)
    quantization = quantization_config(raw)
    if quantization:
        tensors = whole_matrices(tensors, quantization, str(folder / "config.json"))
        tensors = without_zero_biases(tensors, config)
    config = _settle_head(folder, config, raw.get("tie_word_embeddings"), tensors)
    checkpoint = Checkpoint(
        path=folder,
        files=files,
        config=config,
        generation=generation_defaults(generation, str(generation_file)),
        eos_ids=eos,
        tensors=tensors,
    )
    check(checkpoint)
    return checkpoint


def _tensors(folder: Path) -> dict[str, StoredTensor]:
    if (folder / INDEX).is_file():
        return _indexed(folder)
    single = folder / "model.safetensors"
    if not single.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if len(files) > 1:
            raise WeightsError(
                f"{folder}: {len(files)} safetensors files without {INDEX}; add the index"
            )
        if not files:
            raise WeightsError(
                f"{folder}: no model.safetensors; PyTorch .bin files must be converted first"
            )
        single = files[0]
    return stored_tensors(single)


def _indexed(folder: Path) -> dict[str, StoredTensor]:
    index = folder / INDEX
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise WeightsError(f"{index}: has no weight_map; download the file again")
    shards: dict[str, dict[str, StoredTensor]] = {}
    for file in sorted({str(file) for file in places.values()}):
        if not is_plain_name(file):
            raise WeightsError(f"{index}: {file!r} is not the name of a file in the same folder")
        if not (folder / file).is_file():
            raise WeightsError(f"{folder / file}: named in {INDEX} but absent; download it again")
        shards[file] = stored_tensors(folder / file)
    tensors: dict[str, StoredTensor] = {}
    for name, file in places.items():
        if name not in shards[file]:
            elsewhere = [other for other, held in shards.items() if name in held]
            hint = f", it is in {elsewhere[0]}" if elsewhere else ""
            raise WeightsError(f"{folder / file}: tensor {name!r} of {INDEX} is not there{hint}")
        tensors[name] = shards[file][name]
    for held in shards.values():
        for name, stored in held.items():  # not indexed: `check` names it as a leftover
            tensors.setdefault(name, stored)
    return tensors


def is_plain_name(file: str) -> bool:
    """A file name without any folder, safe to join to one."""
    return file not in ("", ".", "..") and not set(file) & set("/\\:\0")


def stored_tensors(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of a safetensors file. Raises WeightsError naming the file and the damage."""
    return {
        name: StoredTensor(
            shape=entry.shape,
            dtype=_DTYPES.get(entry.kind, torch.float32),
            kind=entry.kind,
            num_bytes=entry.end - entry.begin,
            file=file,
            read=functools.partial(_read, file, name),
        )
        for name, entry in read_header(file).items()
    }


def _read(file: Path, name: str) -> torch.Tensor:
    """Copied out of the mapped file: torch aligns the copy, and the file may go away afterwards."""
    try:
        with safe_open(file, framework="pt") as opened:
            mapped: torch.Tensor = opened.get_tensor(name)
            return torch.empty(mapped.shape, dtype=mapped.dtype).copy_(mapped)
    except Exception as error:  # the format's library raises types of its own
        raise WeightsError(f"{file}: tensor {name!r} cannot be read ({error})") from error


def _settle_head(
    folder: Path, config: ModelConfig, flag: Any, tensors: dict[str, StoredTensor]
) -> ModelConfig:
    """Decide `tied_head` from the flag and the files; drops an `lm_head` equal to the embedding."""
    if _HEAD not in tensors:
        if flag is False:
            raise WeightsError(
                f"{folder}: tensor {_HEAD!r} is missing and the config says"
                " tie_word_embeddings: false; download the model again"
            )
        return replace(config, tied_head=True)
    if flag is True and _EMBEDDING in tensors:
        head, embedding = tensors[_HEAD], tensors[_EMBEDDING]
        if _alike(head, embedding) and torch.equal(head.read(), embedding.read()):
            del tensors[_HEAD]
            return config
        log.warning(
            "%s: config says tied embeddings but %s differs from the embedding; using it",
            folder,
            _HEAD,
        )
    return replace(config, tied_head=False)


def _alike(one: StoredTensor, other: StoredTensor) -> bool:
    return one.kind == other.kind and one.kind in _DTYPES and one.shape == other.shape
