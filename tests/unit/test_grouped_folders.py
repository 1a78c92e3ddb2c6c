"""GPTQ, AWQ and compressed-tensors folders against the float model they stand for."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import apparatus
from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.weights.grouped import GroupedInt
from foreword.model.weights.open import open_checkpoint
from quantised_files import (
    Folders,
    Matrix,
    awq,
    change_config,
    compressed_tensors_config,
    gptq,
    int_quantized,
    pack_quantized,
    quantised_folder,
)

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
DOWN = "model.layers.0.mlp.down_proj.weight"
STEM = "model.layers.0.mlp.down_proj"


def assert_equals_floats(folders: Folders, bits: int, group: int, signed: bool) -> None:
    """Every integer and every float, and the tensors that are not quantised."""
    quantised, floats = open_checkpoint(folders.quantised), open_checkpoint(folders.floats)
    assert quantised.names() == floats.names()
    assert len(folders.matrices) == 14
    for name in quantised.names():
        assert quantised.shape(name) == floats.shape(name)
        assert torch.equal(quantised.tensor(name), floats.tensor(name)), name
        weight = quantised.weight(name)
        assert isinstance(weight, GroupedInt) == (name in folders.matrices)
        if not isinstance(weight, GroupedInt):
            continue
        matrix = folders.matrices[name]
        middle = 1 << (bits - 1)
        wanted = matrix.q - middle if signed else matrix.q
        assert np.array_equal(weight.q.numpy(), wanted)
        assert weight.bits == bits
        assert weight.group == (matrix.q.shape[1] if group == -1 else group)
        assert weight.scale is not None
        assert weight.scale.dtype == torch.float16
        assert weight.num_bytes <= 1.03 * quantised.num_bytes(name)
        assert quantised.kind(name) == f"INT{bits}"


CASES = [
    (4, 32, True),
    (4, 32, False),
    (4, 64, False),
    (4, -1, True),
    (8, 32, True),
    (8, -1, False),
]


@pytest.mark.parametrize(("bits", "group", "symmetric"), CASES)
@pytest.mark.parametrize("v2", [False, True])
def test_gptq(tmp_path: Path, bits: int, group: int, symmetric: bool, v2: bool) -> None:
    config = GPTQ | {"bits": bits, "group_size": group, "sym": symmetric}
    if v2:
        config["checkpoint_format"] = "gptq_v2"
    write = functools.partial(gptq, v2=v2)
    folders = quantised_folder(tmp_path, apparatus.target(), write, config, bits, group, symmetric)
    assert_equals_floats(folders, bits, group, symmetric)


@pytest.mark.parametrize("group", [32, 64, -1])
def test_awq(tmp_path: Path, group: int) -> None:
    config = AWQ | {"group_size": group}
    folders = quantised_folder(tmp_path, apparatus.target(), awq, config, 4, group, False)
    assert_equals_floats(folders, 4, group, signed=False)


@pytest.mark.parametrize(("bits", "group", "symmetric"), CASES)
@pytest.mark.parametrize("layout", ["pack-quantized", "int-quantized"])
def test_compressed_tensors(
    tmp_path: Path, bits: int, group: int, symmetric: bool, layout: str
) -> None:
    write = {"pack-quantized": pack_quantized, "int-quantized": int_quantized}[layout]
    config = compressed_tensors_config(bits, group, symmetric, layout)
    folders = quantised_folder(tmp_path, apparatus.target(), write, config, bits, group, symmetric)
    assert_equals_floats(folders, bits, group, symmetric)


def test_known_words() -> None:
    """Counting integers under each layout, against words written out by hand."""
    q = np.tile(np.arange(8), (8, 4))
    matrix = Matrix(q, np.ones((8, 1), np.float16), np.full((8, 1), 8), 4)
    assert {int(word) & 0xFFFFFFFF for word in gptq("x", matrix)["x.qweight"].flat} == {0x76543210}
    assert int(gptq("x", matrix)["x.qzeros"][0, 0]) == 0x77777777
    rows = Matrix(np.repeat(np.arange(8)[:, None], 32, 1), matrix.scale, matrix.zero, 4)
    assert {int(word) & 0xFFFFFFFF for word in awq("x", rows)["x.qweight"].flat} == {0x75316420}


def test_wide_groups_are_cut_to_what_kernels_know() -> None:
    from foreword.model.weights.words import group_size, grouped

    q = torch.arange(512 * 2, dtype=torch.int32).remainder(16).to(torch.uint8).view(2, 512)
    scale = torch.tensor([[0.5, 0.25], [2.0, 4.0]])
    made = grouped(q, scale, None, 4, "x")
    assert (made.group, made.groups) == (128, 4)
    assert torch.equal(made.dequantize(), scale.repeat_interleave(256, 1) * (q.float() - 8))
    assert group_size(100, 1, "x") == 100
    with pytest.raises(UnsupportedModel, match=r"x: groups of 24 columns are not supported; 16,"):
        group_size(96, 4, "x")
    with pytest.raises(WeightsError, match="3 groups do not divide rows of 64"):
        group_size(64, 3, "x")


def test_scales_that_float16_cannot_hold_stay_float32(tmp_path: Path) -> None:
    def bfloat16_like(stem: str, matrix: Matrix) -> dict[str, np.ndarray]:
        parts = pack_quantized(stem, matrix)
        parts[f"{stem}.weight_scale"] = parts[f"{stem}.weight_scale"].astype(np.float32) * 2**-20
        return parts

    config = compressed_tensors_config(4, 32, True)
    folders = quantised_folder(tmp_path, apparatus.target(), bfloat16_like, config)
    weight = open_checkpoint(folders.quantised).weight(DOWN)
    assert weight.scale.dtype == torch.float32
    wanted = folders.matrices[DOWN].floats() * np.float32(2**-20)
    assert np.array_equal(weight.dequantize().numpy(), wanted)


def changed(
    tmp_path: Path,
    write: Callable[[str, Matrix], dict[str, np.ndarray]],
    config: dict[str, Any],
    change: Callable[[dict[str, np.ndarray]], None],
) -> Path:
    folder = quantised_folder(tmp_path, apparatus.target(), write, config).quantised
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_act_order_is_refused_by_name(tmp_path: Path) -> None:
    def shuffle(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{STEM}.g_idx"] = np.ascontiguousarray(tensors[f"{STEM}.g_idx"][::-1])

    folder = changed(tmp_path, gptq, GPTQ | {"desc_act": True}, shuffle)
    with pytest.raises(UnsupportedModel, match=r"down_proj\.g_idx: .*\(desc_act\).*GGUF"):
        open_checkpoint(folder)


def test_act_order_whose_columns_lie_in_order_is_read(tmp_path: Path) -> None:
    folder = changed(tmp_path, gptq, GPTQ | {"desc_act": True}, lambda tensors: None)
    assert open_checkpoint(folder).is_grouped(DOWN)


def test_symmetric_zeros_in_the_other_format_are_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files exist that say gptq and hold the zeros of gptq_v2; `sym` says what they must be."""
    write = functools.partial(gptq, v2=True)
    folders = quantised_folder(tmp_path, apparatus.target(), write, GPTQ)
    with caplog.at_level(logging.WARNING):
        assert_equals_floats(folders, 4, 32, True)
    assert "gptq_v2" in caplog.text


def test_zeros_that_borrowed_from_their_neighbours() -> None:
    """Taking one off a word whose lowest zero is 0 borrows; putting it back undoes that."""
    from foreword.model.weights.gptq import Scheme, _zeros

    zeros = np.array([[0, 3, 15, 8, 1, 0, 2, 7]])
    word = int(sum(int(value) << 4 * place for place, value in enumerate(zeros[0])))
    stored = np.array([[(word - 0x11111111) % 2**32]], np.uint32).view(np.int32)
    made = _zeros("x", torch.from_numpy(stored), Scheme(4, False, False))
    assert np.array_equal(made.numpy(), zeros)


@pytest.mark.parametrize("bias", ["zeros", "numbers"])
def test_a_bias_the_model_lacks(tmp_path: Path, bias: str) -> None:
    def add(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{STEM}.bias"] = np.full(64, 0.0 if bias == "zeros" else 1.0, np.float16)

    folder = changed(tmp_path, gptq, GPTQ, add)
    if bias == "zeros":
        assert f"{STEM}.bias" not in open_checkpoint(folder).names()
    else:
        with pytest.raises(WeightsError, match=r"down_proj\.bias.*does not belong"):
            open_checkpoint(folder)


@pytest.mark.parametrize("part", ["qzeros", "scales"])
def test_a_missing_part_is_named(tmp_path: Path, part: str) -> None:
    def drop(tensors: dict[str, np.ndarray]) -> None:
        del tensors[f"{STEM}.{part}"]

    folder = changed(tmp_path, awq, AWQ, drop)
    with pytest.raises(WeightsError, match=rf"down_proj\.{part}' is missing beside qweight"):
        open_checkpoint(folder)


def test_a_missing_chief_part_is_a_leftover(tmp_path: Path) -> None:
    def drop(tensors: dict[str, np.ndarray]) -> None:
        del tensors[f"{STEM}.weight_packed"]

    folder = changed(tmp_path, pack_quantized, compressed_tensors_config(4, 32, True), drop)
    with pytest.raises(WeightsError, match=r"down_proj\.weight' is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("part", "made", "named"),
    [
        ("qweight", np.zeros((16, 64), np.float32), r"down_proj\.qweight' is F32 .*I32"),
        ("scales", np.zeros((4, 32), np.float16), r"down_proj\.scales' is F16 \[4, 32\]"),
        ("scales", np.zeros((3, 64), np.float16), r"down_proj\.qzeros' .* \[3, 8\]"),
        ("qzeros", np.zeros((4, 64), np.int32), r"down_proj\.qzeros'"),
        ("g_idx", np.zeros(64, np.int32), r"down_proj\.g_idx'"),
        ("qweight", np.zeros((8, 64), np.int32), r"down_proj\.g_idx'|shape \[64, 64\]"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    tmp_path: Path, part: str, made: np.ndarray, named: str
) -> None:
    def swap(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{STEM}.{part}"] = made

    with pytest.raises(WeightsError, match=named):
        open_checkpoint(changed(tmp_path, gptq, GPTQ, swap))


REFUSED = [
    (GPTQ | {"bits": 3}, "GPTQ with 3 bits"),
    (GPTQ | {"bits": None}, "bits must be"),
    (GPTQ | {"checkpoint_format": "marlin"}, "GPTQ format 'marlin'"),
    (GPTQ | {"dynamic": {"+:mlp": {"bits": 8}}}, "dynamic"),
    (GPTQ | {"pack_dtype": "int64"}, "pack_dtype 'int64'"),
    (AWQ | {"version": "gemv"}, "AWQ version 'gemv'"),
    (AWQ | {"bits": 8}, "with 8 bits"),
    (AWQ | {"zero_point": False}, "without zero points"),
    ({"quant_method": "fp8"}, "'fp8'"),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'.*gptq, awq"),
    (compressed_tensors_config(4, 32, True, "marlin-24"), "format 'marlin-24'"),
    (compressed_tensors_config(3, 32, True), "num_bits 3"),
    (compressed_tensors_config(4, 32, True) | {"config_groups": {}}, "config_groups"),
    (compressed_tensors_config(4, 32, True) | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache"),
    (
        compressed_tensors_config(4, 32, True) | {"sparsity_config": {"format": "sparse-24"}},
        "'sparse-24'",
    ),
]


@pytest.mark.parametrize(("config", "named"), REFUSED, ids=lambda value: str(value)[:30])
def test_methods_that_cannot_be_read_are_refused_by_name(
    tmp_path: Path, config: dict[str, Any], named: str
) -> None:
    folder = quantised_folder(tmp_path, apparatus.target(), gptq, GPTQ).quantised
    change_config(folder, quantization_config=config)
    with pytest.raises((UnsupportedModel, WeightsError), match=rf"config\.json.*{named}"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("activations", "accepted"),
    [
        (None, True),
        ({"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"}, True),
        ({"num_bits": 8, "type": "int", "dynamic": False, "strategy": "tensor"}, False),
        ({"num_bits": 8, "type": "float", "dynamic": True}, False),
    ],
)
def test_activations_that_need_no_stored_scale(
    tmp_path: Path, activations: dict[str, Any] | None, accepted: bool
) -> None:
    config = compressed_tensors_config(8, -1, True, "int-quantized")
    config["config_groups"]["group_0"]["input_activations"] = activations
    folder = quantised_folder(tmp_path, apparatus.target(), int_quantized, config, 8, -1).quantised
    if accepted:
        assert open_checkpoint(folder).is_grouped(DOWN)
    else:
        with pytest.raises(UnsupportedModel, match="input_activations"):
            open_checkpoint(folder)


def test_older_name_of_the_config(tmp_path: Path) -> None:
    config = compressed_tensors_config(4, 32, True)
    folder = quantised_folder(tmp_path, apparatus.target(), pack_quantized, config).quantised
    change_config(folder, quantization_config=None, compression_config=config)
    assert open_checkpoint(folder).is_grouped(DOWN)


def test_the_fingerprint_covers_every_file_of_the_parts(tmp_path: Path) -> None:
    """Scales in another shard than the integers."""
    import json

    folder = quantised_folder(tmp_path, apparatus.target(), gptq, GPTQ).quantised
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: "b" if name.endswith("scales") else "a" for name in tensors}
    for file in ("a", "b"):
        own = {name: part for name, part in tensors.items() if places[name] == file}
        save_file(own, folder / f"{file}.safetensors", metadata={"format": "pt"})
    index = {"weight_map": {name: f"{file}.safetensors" for name, file in places.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(folder)
    assert [file.name for file in checkpoint.files] == ["a.safetensors", "b.safetensors"]
    assert checkpoint.weight(DOWN).shape == (64, 128)
