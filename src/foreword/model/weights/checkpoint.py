"""A checkpoint as the model sees it: a config and named tensors, whatever format the file has.

Names and layouts are Hugging Face's; `folder.py` and `gguf_file.py` translate. Nothing is read
until `tensor` is called. Knows neither formats nor the network.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from foreword.errors import WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights.fingerprint import file_sha256
from foreword.model.weights.grouped import GroupedInt


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in a file; `read()` returns an own, aligned, contiguous copy as floats.
    `read_grouped`: how to read it as the integers it is stored in, None when it is not; `group`:
    columns that then share a scale."""

    shape: tuple[int, ...]
    dtype: torch.dtype  # of what read() returns; quantised kinds become float32
    kind: str  # the file's own type name: F32, BF16, Q4_1, ...
    num_bytes: int  # in the file
    file: Path
    read: Callable[[], torch.Tensor]
    read_grouped: Callable[[], GroupedInt] | None = None
    group: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """A model on disk, opened and checked.

    path: what was opened. files: the weight files, in order. generation: the sampling defaults
    (hf_config.APPLIED) of generation_config.json; empty when that file says
    `do_sample: false`, is absent, or the model is a GGUF file. eos_ids: every end token that any
    of the model's files declares. metadata: GGUF key-value fields as plain Python data, {} for
    folders. quantization: what matrices are quantised by when read, "" = they come as stored.
    """

    path: Path
    files: tuple[Path, ...]
    config: ModelConfig
    generation: dict[str, float | int]
    eos_ids: frozenset[int]
    tensors: Mapping[str, StoredTensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    quantization: str = ""

    def names(self) -> set[str]:
        """Hugging Face tensor names."""
        return set(self.tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """An own copy in float32, bfloat16 or float16 as stored; quantised types as float32."""
        return self._stored(name).read()

    def weight(self, name: str) -> torch.Tensor | GroupedInt:
        """As `tensor`, but a quantised matrix in its native form."""
        stored = self._stored(name)
        if stored.read_grouped is None:
            return stored.read()
        return stored.read_grouped()

    def is_grouped(self, name: str) -> bool:
        """Whether `weight` returns a GroupedInt."""
        return self._stored(name).read_grouped is not None

    def groups(self) -> frozenset[int]:
        """Columns that share a scale in the quantised matrices; empty without any."""
        held = self.tensors.values()
        return frozenset(stored.group for stored in held if stored.read_grouped is not None)

    def num_bytes(self, name: str) -> int:
        """Bytes in the file; of a matrix quantised when read: what it would take there."""
        return self._stored(name).num_bytes

    def dtype(self, name: str) -> torch.dtype:
        """The dtype `tensor` returns."""
        return self._stored(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._stored(name).shape

    def kind(self, name: str) -> str:
        """The type name in the file, such as BF16 or Q4_1."""
        return self._stored(name).kind

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors as they lie in the files."""
        return sum(stored.num_bytes for stored in self.tensors.values())

    def fingerprint(self) -> str:
        """sha256 (hex) over the config, the bytes of every weight file, wherever they lie, and the
        quantisation asked for.

        File hashes are kept in the cache folder by path, size and modification time.
        """
        digest = hashlib.sha256(json.dumps(asdict(self.config), sort_keys=True).encode())
        for file in self.files:
            digest.update(bytes.fromhex(file_sha256(file)))
        digest.update(self.quantization.encode())
        return digest.hexdigest()

    def _stored(self, name: str) -> StoredTensor:
        try:
            return self.tensors[name]
        except KeyError:
            raise WeightsError(f"{self.path}: no tensor named {name!r}") from None
