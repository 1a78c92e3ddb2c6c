"""GGUF files: header, row order, every tensor type, parts, and the real SmolLM2 file."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import apparatus
from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.config import RopeConfig
from foreword.model.rope import inverse_frequencies
from foreword.model.weights.check import READABLE
from foreword.model.weights.gguf_file import hugging_face_name
from foreword.model.weights.gguf_header import open_gguf
from foreword.model.weights.open import open_checkpoint
from weight_files import gguf_fields, gguf_name, gguf_tensors, interleaved, tiny_gguf, write_gguf

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
BLOCK_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34,
    "Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210,
}  # fmt: skip


def with_tensor(path: Path, name: str, rows: np.ndarray, kind: Kind | None) -> Path:
    """T with one tensor replaced by `rows` (bytes [rows, bytes per row] for quantised kinds)."""
    folder = apparatus.target()
    tensors = gguf_tensors(folder) | {gguf_name(name): (rows, kind)}
    return write_gguf(path, gguf_fields(folder), tensors)


def one_row_model(path: Path, blocks: bytes, kind: Kind, values: int) -> Path:
    """T with an intermediate size of `values`, so that one row of down_proj is one known block."""
    folder = apparatus.target()
    fields = gguf_fields(folder) | {"llama.feed_forward_length": values}
    tensors = gguf_tensors(folder)
    for layer in range(2):
        for name in ("ffn_gate", "ffn_up"):
            tensors[f"blk.{layer}.{name}.weight"] = (np.zeros((values, 64), np.float32), None)
        rows = np.frombuffer(blocks * 64, np.uint8).reshape(64, len(blocks))
        tensors[f"blk.{layer}.ffn_down.weight"] = (rows, kind)
    return write_gguf(path, fields, tensors)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_v82_row_order_gives_the_safetensors_tensors(tmp_path: Path, architecture: str) -> None:
    """Every tensor and the config equal the folder's bit for bit, so the logits do too."""
    folder = apparatus.tiny_checkpoint(architecture=architecture)
    wanted = open_checkpoint(folder)
    found = open_checkpoint(tiny_gguf(tmp_path / "model.gguf", folder))
    assert found.config == wanted.config
    assert found.names() == wanted.names()
    for name in wanted.names():
        assert torch.equal(found.tensor(name), wanted.tensor(name)), name


def test_v82_row_order_of_the_file() -> None:
    rows = np.arange(16)[:, None]
    assert interleaved(rows, 2)[:10, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12]


def test_v82_only_llama_is_interleaved(tmp_path: Path) -> None:
    folder = apparatus.tiny_checkpoint(architecture="qwen2")
    assert np.array_equal(
        gguf_tensors(folder)["blk.0.attn_q.weight"][0], open_checkpoint(folder).tensor(Q_PROJ)
    )
    llama = apparatus.target()
    in_file = gguf_tensors(llama)["blk.0.attn_q.weight"][0]
    assert not np.array_equal(in_file, open_checkpoint(llama).tensor(Q_PROJ))


def test_v81_absent_output_is_the_embedding(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "model.gguf", apparatus.target()))
    assert checkpoint.config.tied_head
    assert "lm_head.weight" not in checkpoint.names()


def test_v81_present_output_is_used(tmp_path: Path) -> None:
    folder = apparatus.target(tied=False)
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "model.gguf", folder))
    assert not checkpoint.config.tied_head
    head = checkpoint.tensor("lm_head.weight")
    assert torch.equal(head, open_checkpoint(folder).tensor("lm_head.weight"))
    assert not torch.equal(head, checkpoint.tensor("model.embed_tokens.weight"))


def test_v83_q4_1_block(tmp_path: Path) -> None:
    header = np.array([0.5, -3.0], np.float16).tobytes()
    block = header + bytes(j | (15 - j) << 4 for j in range(16))
    checkpoint = open_checkpoint(one_row_model(tmp_path / "m.gguf", block, Kind.Q4_1, 32))
    rising = [-3.0 + 0.5 * j for j in range(16)]
    assert checkpoint.tensor(DOWN)[0].tolist() == rising + rising[::-1]
    assert checkpoint.kind(DOWN) == "Q4_1"
    assert checkpoint.dtype(DOWN) == torch.float32


def test_v84_q4_k_block(tmp_path: Path) -> None:
    block = np.array([1.0, 0.5], np.float16).tobytes()
    block += bytes((37 * i + 11) % 256 for i in range(12))
    block += bytes((7 * i + 3) % 256 for i in range(128))
    checkpoint = open_checkpoint(one_row_model(tmp_path / "m.gguf", block, Kind.Q4_K, 256))
    row = checkpoint.tensor(DOWN)[63]
    assert row[::32].tolist() == [17.5, -2, 42.5, 805, -8.5, 69.5, 59.5, 175]
    assert row.sum().item() == 40560


def test_v84_q6_k_block(tmp_path: Path) -> None:
    block = bytes((5 * i + 1) % 256 for i in range(128))
    block += bytes((11 * i + 2) % 256 for i in range(64))
    block += np.array([9 * i - 64 for i in range(16)], np.int8).tobytes()
    block += np.array([0.125], np.float16).tobytes()
    checkpoint = open_checkpoint(one_row_model(tmp_path / "m.gguf", block, Kind.Q6_K, 256))
    row = checkpoint.tensor(DOWN)[0]
    at = [0, 1, 15, 16, 32, 64, 96, 127, 128, 255]
    assert row[at].tolist() == [-8, 80, -224, -6.875, 178.25, 112, 27.5, 1.625, 1, 62.125]
    assert row.sum().item() == 632.5


@pytest.mark.parametrize("name", BLOCK_BYTES)
@pytest.mark.parametrize("tensor", [DOWN, Q_PROJ])
def test_v84_random_blocks_equal_gguf_py(tmp_path: Path, name: str, tensor: str) -> None:
    """Non-zero random bytes, several blocks in every row, also where rows are put back in order."""
    kind = Kind[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    assert size == BLOCK_BYTES[name]
    columns = 3 * values
    random = np.random.default_rng(7)
    folder = apparatus.target()
    fields = gguf_fields(folder) | {"llama.feed_forward_length": columns}
    fields |= {"llama.embedding_length": columns}
    rows = {DOWN: columns, Q_PROJ: 64}[tensor]
    blocks = _finite_blocks(random, rows, kind)
    tensors: dict[str, Any] = {}
    for old, (array, _) in gguf_tensors(folder).items():
        shape = [
            columns if size in (64, 128) and axis else size for axis, size in enumerate(array.shape)
        ]
        if old.endswith("norm.weight") or "ffn" in old:
            shape = [columns] * array.ndim
        if "attn_output" in old:
            shape = [columns, 64]
        tensors[old] = (np.zeros(shape, np.float32), None)
    tensors[gguf_name(tensor)] = (blocks, kind)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", fields, tensors))
    wanted = gguf.dequantize(blocks, kind)
    found = checkpoint.tensor(tensor).numpy()
    if tensor == Q_PROJ:
        found = interleaved(found, 4)
    assert np.array_equal(found.view(np.int32), wanted.view(np.int32))
    assert np.count_nonzero(found) > found.size // 2
    assert checkpoint.is_grouped(tensor)
    native = checkpoint.weight(tensor)
    assert torch.equal(
        native.dequantize().view(torch.int32), checkpoint.tensor(tensor).view(torch.int32)
    )


def _finite_blocks(random: np.random.Generator, rows: int, kind: Kind) -> np.ndarray:
    """Random block bytes [rows, 3 blocks] whose float16 scales are neither NaN nor infinite."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(1, 256, (rows, 3, size), dtype=np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    default = (0, 2) if kind.name.endswith("_1") else (0,)
    for at in halves.get(kind.name, default):
        scales = random.standard_normal((rows, 3, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, 3 * size)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_v84_plain_types_keep_their_dtype(tmp_path: Path, name: str) -> None:
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
    wanted = open_checkpoint(apparatus.target()).tensor(Q_PROJ).to(dtype)
    bits = wanted.view(torch.int16 if wanted.itemsize == 2 else torch.float32).numpy()
    rows = interleaved(bits, 4)
    if name == "BF16":
        array, kind = rows.view(np.uint8), Kind.BF16
    else:
        array, kind = rows.view({"F16": np.float16, "F32": np.float32}[name]), None
    path = with_tensor(tmp_path / "m.gguf", Q_PROJ, array, kind)
    found = open_checkpoint(path).tensor(Q_PROJ)
    assert found.dtype == dtype
    assert torch.equal(found, wanted)
    assert found.data_ptr() % 64 == 0


@pytest.mark.parametrize("kind", [Kind.TQ1_0, Kind.IQ4_NL, Kind.IQ4_XS, Kind.MXFP4, Kind.Q8_K])
def test_v84_other_types_are_refused_by_name(tmp_path: Path, kind: Kind) -> None:
    assert kind.name not in READABLE
    values, size = gguf.GGML_QUANT_SIZES[kind]
    columns = values * max(1, 128 // values)
    path = tmp_path / "m.gguf"
    block = bytes(size * (columns // values))
    one_row_model(path, block, kind, columns)
    with pytest.raises(UnsupportedModel, match=rf"m\.gguf: tensor '{DOWN}' has type {kind.name}"):
        open_checkpoint(path)


def test_v84_unknown_type_number_is_named(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", apparatus.target())
    name = b"blk.0.ffn_down.weight"
    content = bytearray(path.read_bytes())
    at = content.index(name) + len(name) + 4 + 2 * 8
    content[at : at + 4] = struct.pack("<I", 999)
    path.write_bytes(content)
    with pytest.raises(
        UnsupportedModel, match=r"'blk\.0\.ffn_down\.weight' has unknown type number 999"
    ):
        open_checkpoint(path)


def test_v88_rope_freqs_are_applied(tmp_path: Path) -> None:
    folder = apparatus.target()
    plain = inverse_frequencies(RopeConfig(10000.0), 16, 128)[0]
    rope = RopeConfig(10000.0, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    wanted = inverse_frequencies(rope, 16, 128)[0]
    factors = (plain / wanted).astype(np.float32)
    np.testing.assert_allclose(factors[:4], [1, 1.294, 7.6674, 8], rtol=1e-4)
    tensors = gguf_tensors(folder) | {"rope_freqs.weight": (factors, None)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_fields(folder), tensors))
    assert checkpoint.config.rope.factors == tuple(factors.tolist())
    assert "rope_freqs.weight" not in checkpoint.names()
    found, _ = inverse_frequencies(checkpoint.config.rope, 16, 128)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("factors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_v88_bad_rope_freqs_are_refused(tmp_path: Path, factors: list[float]) -> None:
    folder = apparatus.target()
    extra = {"rope_freqs.weight": (np.array(factors, np.float32), None)}
    path = write_gguf(tmp_path / "m.gguf", gguf_fields(folder), gguf_tensors(folder) | extra)
    with pytest.raises(WeightsError, match=r"rope_freqs\.weight"):
        open_checkpoint(path)


def split_in_two(folder: Path, fields: dict[str, Any]) -> list[Path]:
    tensors = list(gguf_tensors(apparatus.target()).items())
    paths = [folder / f"model-0000{n}-of-00002.gguf" for n in (1, 2)]
    counts = {"split.count": 2, "split.tensors.count": len(tensors)}
    architecture = {"general.architecture": "llama"}
    write_gguf(paths[0], fields | counts | {"split.no": 0}, dict(tensors[:9]))
    write_gguf(paths[1], architecture | counts | {"split.no": 1}, dict(tensors[9:]))
    return paths


@pytest.mark.parametrize("given", [0, 1])
def test_v89_any_part_opens_the_whole(tmp_path: Path, given: int) -> None:
    paths = split_in_two(tmp_path, gguf_fields(apparatus.target()))
    wanted = open_checkpoint(apparatus.target())
    for found in (open_checkpoint(paths[given]), open_checkpoint(tmp_path)):
        assert found.files == tuple(paths)
        assert found.config == wanted.config
        for name in wanted.names():
            assert torch.equal(found.tensor(name), wanted.tensor(name)), name


@pytest.mark.parametrize("absent", [0, 1])
def test_v89_absent_part_is_named(tmp_path: Path, absent: int) -> None:
    paths = split_in_two(tmp_path, gguf_fields(apparatus.target()))
    paths[absent].unlink()
    with pytest.raises(
        WeightsError, match=f"{paths[absent].name}: this part of the model is absent"
    ):
        open_checkpoint(paths[1 - absent])


def test_v89_renamed_part_is_refused(tmp_path: Path) -> None:
    paths = split_in_two(tmp_path, gguf_fields(apparatus.target()))
    alone = paths[0].rename(tmp_path / "alone.gguf")
    with pytest.raises(WeightsError, match=r"alone\.gguf: it says it is part 1 of 2"):
        open_checkpoint(alone)


def test_v93_what_is_not_gguf_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    contents = {
        b"version https://git-lfs.github.com/spec/v1\n": "Git LFS pointer",
        b"": "empty",
        b"GGUF": "not a GGUF file",
        b"<!doctype html>": "web page",
        b"GGUF" + struct.pack("<IQQ", 3, 2**62, 2**62): "truncated inside its header",
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0): "version 50331648",
    }
    for content, message in contents.items():
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=rf"m\.gguf: .*{message}"):
            open_checkpoint(path)


def test_v93_truncated_file_names_the_tensor(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", apparatus.target())
    content = path.read_bytes()
    last = open_gguf(path).tensors[-1]
    path.write_bytes(content[: last.offset + last.num_bytes - 1])
    with pytest.raises(WeightsError, match=f"truncated inside tensor '{last.name}'"):
        open_checkpoint(path)
    for cut in range(0, 2000, 97):
        path.write_bytes(content[:cut])
        with pytest.raises(WeightsError, match=r"m\.gguf: "):
            open_checkpoint(path)


def test_v93_duplicate_and_overlapping_tensors(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", apparatus.target())
    content = path.read_bytes()
    path.write_bytes(content.replace(b"blk.1.ffn_up.weight", b"blk.0.ffn_up.weight"))
    with pytest.raises(WeightsError, match=r"'blk\.0\.ffn_up\.weight' occurs twice"):
        open_checkpoint(path)
    name = b"blk.1.ffn_up.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8 + 4
    path.write_bytes(content[:at] + struct.pack("<Q", 32) + content[at + 8 :])
    with pytest.raises(WeightsError, match="overlaps"):
        open_checkpoint(path)


def test_leftover_and_missing_tensors_are_named(tmp_path: Path) -> None:
    folder = apparatus.target()
    tensors = gguf_tensors(folder)
    extra = {"blk.0.ssm_in.weight": (np.zeros((2, 2), np.float32), None)}
    path = write_gguf(tmp_path / "m.gguf", gguf_fields(folder), tensors | extra)
    with pytest.raises(WeightsError, match=r"'blk\.0\.ssm_in\.weight' does not belong"):
        open_checkpoint(path)
    del tensors["blk.1.attn_v.weight"]
    path = write_gguf(tmp_path / "n.gguf", gguf_fields(folder), tensors)
    with pytest.raises(
        WeightsError, match=r"'model\.layers\.1\.self_attn\.v_proj\.weight' is missing"
    ):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "rope"),
    [
        ({"type": "linear", "factor": 2.0}, RopeConfig(10000.0, "linear", 2.0)),
        ({"type": "none", "factor": 2.0}, RopeConfig(10000.0)),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            RopeConfig(10000.0, "yarn", 4.0, original_max_position=32),
        ),
    ],
)
def test_rope_scaling_fields(tmp_path: Path, changes: dict[str, Any], rope: RopeConfig) -> None:
    fields = {f"llama__rope__scaling__{name}": value for name, value in changes.items()}
    path = tiny_gguf(tmp_path / "m.gguf", apparatus.target(), **fields)
    assert open_checkpoint(path).config.rope == rope


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"llama__rope__scaling__type": "longrope"}, "longrope"),
        ({"llama__rope__dimension_count": 8}, r"rope\.dimension_count"),
        ({"llama__attention__head_count_kv": [2, 1]}, "head_count_kv differs between layers"),
        ({"llama__context_length": None}, "context_length"),
    ],
)
def test_fields_that_cannot_work_are_named(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", apparatus.target(), **changes)
    with pytest.raises(WeightsError, match=rf"m\.gguf: .*{named}"):
        open_checkpoint(path)


def test_equal_sizes_per_layer_and_a_window(tmp_path: Path) -> None:
    fields = {"llama__attention__head_count_kv": [2, 2], "llama__attention__sliding_window": 4}
    config = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", apparatus.target(), **fields)).config
    assert config.num_kv_heads == 2
    assert config.windows == (4, 4)


def test_real_file_config(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    config = checkpoint.config
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (49152, 576, 30)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (9, 3, 64)
    assert (config.intermediate_size, config.max_position) == (1536, 8192)
    assert config.rope == RopeConfig(100000.0)
    assert config.norm_eps == 1e-5
    assert config.tied_head
    assert config.windows == (None,) * 30
    assert checkpoint.eos_ids == {2}
    assert len(checkpoint.names()) == 272


def test_v83_real_file_equals_gguf_py(smollm2_path: Path) -> None:
    """All 210 Q4_1 tensors and the rest, and every key-value field, against gguf-py's reader."""
    checkpoint = open_checkpoint(smollm2_path)
    reader = gguf.GGUFReader(smollm2_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    for name in ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"):
        del fields[name]
    assert checkpoint.metadata == fields
    num_q4_1 = 0
    for tensor in reader.tensors:
        wanted = gguf.dequantize(tensor.data, tensor.tensor_type)
        found = checkpoint.tensor(hugging_face_name(tensor.name)).numpy()
        heads = {"attn_q": 9, "attn_k": 3}.get(tensor.name.split(".")[-2])
        if heads:
            found = interleaved(found, heads)
        assert np.array_equal(found.view(np.int32), wanted.view(np.int32)), tensor.name
        num_q4_1 += tensor.tensor_type == Kind.Q4_1
    assert num_q4_1 == 210
