"""Safetensors folders: damage is named before anything is read, and the right file is used."""

from __future__ import annotations

import json
import logging
import shutil
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file

import apparatus
from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.weights.folder import INDEX
from foreword.model.weights.header import read_header
from foreword.model.weights.open import open_checkpoint
from weight_files import copy_folder, raw_safetensors

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def same(config: dict[str, Any]) -> None:
    """Changes nothing."""


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """T in one file, free to damage."""
    return copy_folder(apparatus.target(), tmp_path / "whole", same)


@pytest.fixture
def split(tmp_path: Path) -> Path:
    """T, untied, in three files with an index, free to damage."""
    return copy_folder(apparatus.target(shards=3, tied=False), tmp_path / "split", same)


def held_by(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of a single file, copied: the file may be damaged while they are in use."""
    return load((folder / "model.safetensors").read_bytes())


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = held_by(folder)
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_every_tensor_is_an_own_aligned_equal_copy(whole: Path) -> None:
    checkpoint = open_checkpoint(whole)
    wanted = held_by(whole)
    assert checkpoint.names() == set(wanted)
    read = {name: checkpoint.tensor(name) for name in wanted}
    (whole / "model.safetensors").write_bytes(b"")  # copies do not hang on the file
    for name, tensor in read.items():
        assert torch.equal(tensor, wanted[name]), name
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
        assert checkpoint.shape(name) == tuple(tensor.shape)
        assert checkpoint.dtype(name) == tensor.dtype == torch.float32
    assert checkpoint.stored_bytes == sum(tensor.nbytes for tensor in wanted.values())
    assert checkpoint.metadata == {}


def test_split_equals_whole(split: Path) -> None:
    whole = open_checkpoint(apparatus.target(tied=False))
    checkpoint = open_checkpoint(split)
    assert len(checkpoint.files) == 3
    assert checkpoint.names() == whole.names()
    for name in whole.names():
        assert torch.equal(checkpoint.tensor(name), whole.tensor(name)), name


@pytest.mark.parametrize("number", [1, 2, 3])
def test_v90_absent_shard_is_named(split: Path, number: int) -> None:
    name = f"model-0000{number}-of-00003.safetensors"
    (split / name).unlink()
    with pytest.raises(WeightsError, match=f"{name}: named in .* but absent"):
        open_checkpoint(split)


def change_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def test_v90_index_names_the_wrong_shard(split: Path) -> None:
    change_index(split, lambda places: places.update({HEAD: "model-00001-of-00003.safetensors"}))
    with pytest.raises(WeightsError, match=r"model-00001.*'lm_head\.weight'.*it is in model-00003"):
        open_checkpoint(split)


def test_v90_index_without_a_tensor_that_a_shard_holds(split: Path) -> None:
    """A forgotten line is harmless: the tensor is in an indexed file all the same."""
    change_index(split, lambda places: places.pop("model.norm.weight"))
    assert "model.norm.weight" in open_checkpoint(split).names()


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "..", "a\\b", ""])
def test_v90_index_may_not_leave_the_folder(split: Path, file: str) -> None:
    change_index(split, lambda places: places.update({HEAD: file}))
    with pytest.raises(WeightsError, match="not the name of a file in the same folder"):
        open_checkpoint(split)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "{", '{"weight_map": {}}'])
def test_v90_damaged_index_is_named(split: Path, content: str) -> None:
    (split / INDEX).write_text(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(split)


@pytest.mark.parametrize("name", ["adapter_model", "consolidated", "aaa", "zzz", "model"])
def test_v91_index_wins_over_other_files(split: Path, name: str) -> None:
    before = open_checkpoint(split)
    zeros = {HEAD: torch.zeros(512, 64), "model.norm.weight": torch.zeros(64)}
    save_file(zeros, split / f"{name}.safetensors")
    after = open_checkpoint(split)
    assert after.files == before.files
    assert after.fingerprint() == before.fingerprint()
    for tensor in zeros:
        assert torch.equal(after.tensor(tensor), before.tensor(tensor))


def test_v91_single_file_wins_over_other_files(whole: Path) -> None:
    save_file({EMBEDDING: torch.zeros(512, 64)}, whole / "adapter.safetensors")
    assert open_checkpoint(whole).files == (whole / "model.safetensors",)


def test_v91_several_files_without_an_index(whole: Path) -> None:
    shutil.copy(whole / "model.safetensors", whole / "a.safetensors")
    (whole / "model.safetensors").rename(whole / "b.safetensors")
    with pytest.raises(WeightsError, match=f"2 safetensors files without {INDEX}"):
        open_checkpoint(whole)


@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("head", ["absent", "equal", "different"])
def test_v92_tied_flag_and_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flag: bool | None, head: str
) -> None:
    def change(config: dict[str, Any]) -> None:
        config["tie_word_embeddings"] = flag
        if flag is None:
            del config["tie_word_embeddings"]

    folder = copy_folder(apparatus.target(), tmp_path / "model", change)
    other = torch.randn(512, 64, generator=torch.Generator().manual_seed(1))
    if head != "absent":
        rewrite(
            folder,
            lambda held: held.update({HEAD: held[EMBEDDING].clone() if head == "equal" else other}),
        )
    if head == "absent" and flag is False:
        with pytest.raises(WeightsError, match=r"'lm_head\.weight' is missing"):
            open_checkpoint(folder)
        return
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(folder)
    used = EMBEDDING if checkpoint.config.tied_head else HEAD
    wanted = other if head == "different" else held_by(folder)[EMBEDDING]
    assert torch.equal(checkpoint.tensor(used), wanted)
    assert ("differs from the embedding" in caplog.text) == (flag is True and head == "different")


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
OTHER = {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}

DAMAGED: dict[str, tuple[Any, str]] = {
    "lfs pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
        "Git LFS pointer",
    ),
    "empty": (b"", "empty"),
    "seven bytes": (b"\x01" * 7, "only 7 bytes"),
    "web page": (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page"),
    "web page after blanks": (b"\n  <html>" + b" " * 60, "web page"),
    "header beyond the file": (
        struct.pack("<Q", 11) + b"{}" + b" " * 8,
        "header of 11 bytes in 18",
    ),
    "huge header": (struct.pack("<Q", 2**63) + b"{}", "header of"),
    "not json": (struct.pack("<Q", 4) + b"{abc", "not JSON"),
    "not utf-8": (struct.pack("<Q", 2) + b"\xff\xfe", "not JSON"),
    "nested": (struct.pack("<Q", 100_000) + b"[" * 100_000, "not JSON"),
    "a list": (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
}
LAYOUTS: dict[str, tuple[Any, bytes, str]] = {
    "duplicate": (
        b'{"a": %s, "a": %s}' % ((json.dumps(ENTRY).encode(),) * 2),
        bytes(8),
        "'a' occurs twice",
    ),
    "overlap": ({"a": ENTRY, "b": OTHER}, bytes(12), "'b' overlaps 'a'"),
    "hole": ({"a": {**ENTRY, "data_offsets": [4, 12]}}, bytes(12), "belong to no tensor"),
    "truncated": ({"a": ENTRY}, bytes(7), "truncated inside tensor 'a', at least 1 bytes"),
    "rest": ({"a": ENTRY}, bytes(9), "1 bytes behind"),
    "size": ({"a": {**ENTRY, "shape": [3]}}, bytes(8), "does not take 8 bytes"),
    "backwards": ({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8), "'a'"),
    "negative": ({"a": {**ENTRY, "shape": [-2]}}, bytes(8), "no valid"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8), "no valid"),
    "text": ({"a": "b"}, bytes(8), "'a' is not described"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_v93_what_is_not_safetensors_is_named_quickly(whole: Path, name: str) -> None:
    content, message = DAMAGED[name]
    path = whole / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(WeightsError, match=f"model.safetensors.*{message}"):
            open_checkpoint(whole)
        seconds, (_, peak) = time.perf_counter() - start, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seconds < 1.0
    assert peak < 8_000_000


@pytest.mark.parametrize("name", LAYOUTS)
def test_v93_damaged_layouts_name_the_tensor(tmp_path: Path, name: str) -> None:
    header, data, message = LAYOUTS[name]
    path = raw_safetensors(tmp_path / "x.safetensors", header, data)
    with pytest.raises(WeightsError, match=rf"x\.safetensors.*{message}"):
        read_header(path)


def test_v93_the_first_damage_of_a_sharded_folder_is_named(split: Path) -> None:
    (split / "model-00002-of-00003.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(WeightsError, match=r"model-00002-of-00003.*Git LFS"):
        open_checkpoint(split)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_v94_values_equal_their_float32_cast(whole: Path, dtype: torch.dtype) -> None:
    tensors = held_by(whole)
    rewrite(whole, lambda held: held.update({n: t.to(dtype) for n, t in held.items()}))
    checkpoint = open_checkpoint(whole)
    for name, tensor in tensors.items():
        assert checkpoint.dtype(name) == dtype
        assert torch.equal(checkpoint.tensor(name), tensor.to(dtype))


def test_v94_dtypes_may_be_mixed(whole: Path) -> None:
    kinds = [torch.float32, torch.bfloat16, torch.float16]

    def change(held: dict[str, torch.Tensor]) -> None:
        for number, name in enumerate(sorted(held)):
            held[name] = held[name].to(kinds[number % 3])

    rewrite(whole, change)
    checkpoint = open_checkpoint(whole)
    assert {checkpoint.dtype(name) for name in checkpoint.names()} == set(kinds)
    for name, tensor in held_by(whole).items():
        assert torch.equal(checkpoint.tensor(name), tensor)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.float64, "F64"), (torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")],
)
def test_v94_other_dtypes_are_refused_by_name(whole: Path, dtype: torch.dtype, kind: str) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    rewrite(whole, lambda held: held.update({name: held[name].to(dtype)}))
    with pytest.raises(UnsupportedModel, match=f"'{name}' has type {kind}"):
        open_checkpoint(whole)


def test_v95_bfloat16_range_is_not_narrowed(whole: Path) -> None:
    """Values beyond 65504 stay what they are: nothing passes through float16 on the way in."""
    name = "model.layers.0.mlp.down_proj.weight"
    rewrite(whole, lambda held: held.update({name: (held[name] * 1e6).to(torch.bfloat16)}))
    tensor = open_checkpoint(whole).tensor(name)
    assert tensor.dtype == torch.bfloat16
    assert tensor.isfinite().all()
    assert tensor.abs().max() > 65504


def test_missing_leftover_and_misshapen_tensors_are_named(whole: Path) -> None:
    name = "model.layers.0.self_attn.k_proj.weight"
    complete = held_by(whole)

    def refused(message: str) -> None:
        with pytest.raises(WeightsError, match=message):
            open_checkpoint(whole)

    rewrite(whole, lambda held: held.pop(name))
    refused(f"'{name}' is missing")
    rewrite(whole, lambda held: held.update({name: torch.zeros(64, 64)}))
    refused(
        rf"model\.safetensors: tensor '{name}' has shape \[64, 64\], the config says \[32, 64\]"
    )
    rewrite(whole, lambda held: held.update(complete | {"model.layers.2.extra": torch.zeros(1)}))
    refused(r"'model\.layers\.2\.extra' does not belong")


def test_buffers_of_old_exporters_are_ignored(whole: Path) -> None:
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8, dtype=torch.float64),
        "model.rotary_emb.inv_freq": torch.zeros(8),
    }
    before = open_checkpoint(whole).names()
    rewrite(whole, lambda held: held.update(extra))
    assert open_checkpoint(whole).names() == before


def test_folder_without_weights_or_config(whole: Path, tmp_path: Path) -> None:
    (whole / "model.safetensors").rename(whole / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"no model\.safetensors.*\.bin"):
        open_checkpoint(whole)
    (whole / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"config\.json: not valid JSON"):
        open_checkpoint(whole)
    (whole / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"neither config\.json nor a \.gguf file"):
        open_checkpoint(whole)


@pytest.mark.parametrize("architecture", ["mistral", "qwen2", "qwen3"])
def test_other_families_open(architecture: str) -> None:
    checkpoint = open_checkpoint(apparatus.tiny_checkpoint(architecture=architecture))
    assert checkpoint.config.architecture == architecture
