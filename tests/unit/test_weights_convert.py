"""GGUF -> Hugging Face folder: what is written reads back equal, here and in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import apparatus
from foreword.errors import ConfigError, UnsupportedModel, WeightsError
from foreword.model.config import RopeConfig
from foreword.model.rope import inverse_frequencies
from foreword.model.weights.convert import convert_to_hf
from foreword.model.weights.folder import INDEX
from foreword.model.weights.open import open_checkpoint
from weight_files import gguf_fields, gguf_tensors, tiny_gguf, write_gguf


def no_tokenizer(folder: Path) -> None:
    """A model without text."""


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_round_trip_is_equal(tmp_path: Path, architecture: str, tied: bool) -> None:
    source = apparatus.tiny_checkpoint(architecture=architecture, tied=tied)
    path = tiny_gguf(
        tmp_path / "m.gguf",
        source,
        tokenizer__ggml__eos_token_id=256,
        tokenizer__ggml__eot_token_id=258,
        tokenizer__ggml__bos_token_id=257,
    )
    checkpoint = open_checkpoint(path)
    convert_to_hf(checkpoint, tmp_path / "out", lambda folder: apparatus.write_tokenizer(folder))
    found = open_checkpoint(tmp_path / "out")
    assert found.config == checkpoint.config
    assert found.eos_ids == {256, 258}
    assert found.names() == checkpoint.names()
    for name in found.names():
        assert torch.equal(found.tensor(name), checkpoint.tensor(name)), name
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["bos_token_id"] == 257


def test_transformers_reads_what_was_written(tmp_path: Path) -> None:
    """The tensors transformers holds after loading equal the original folder's, for every name."""
    checkpoint = open_checkpoint(tiny_gguf(tmp_path / "m.gguf", apparatus.target()))
    convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    original = open_checkpoint(apparatus.target())
    held = dict(model.named_parameters())
    for name in original.names():
        assert torch.equal(held[name], original.tensor(name)), name
    assert model.config.head_dim == 16


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 2.0},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "beta_fast": 16.0,
        },
    ],
)
def test_rope_is_written_so_that_both_read_it(tmp_path: Path, scaling: dict[str, Any]) -> None:
    checkpoint = open_checkpoint(apparatus.target(rope_scaling=scaling))
    convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer)
    assert open_checkpoint(tmp_path / "out").config == checkpoint.config
    read = AutoConfig.from_pretrained(tmp_path / "out").rope_parameters
    assert {name: read[name] for name in scaling} == scaling


def rope_freqs(path: Path, factors: np.ndarray) -> Path:
    folder = apparatus.target()
    tensors = gguf_tensors(folder) | {"rope_freqs.weight": (factors.astype(np.float32), None)}
    return write_gguf(path, gguf_fields(folder), tensors)


def test_v88_llama3_factors_become_rope_type_llama3(tmp_path: Path) -> None:
    rope = RopeConfig(10000.0, "llama3", 32.0, 8192, low_freq_factor=1.0, high_freq_factor=4.0)
    plain = inverse_frequencies(RopeConfig(10000.0), 16, 128)[0]
    factors = plain / inverse_frequencies(rope, 16, 128)[0]
    checkpoint = open_checkpoint(rope_freqs(tmp_path / "m.gguf", factors))
    convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer)
    assert open_checkpoint(tmp_path / "out").config.rope == rope


def test_v88_unknown_factors_cannot_be_written(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(rope_freqs(tmp_path / "m.gguf", np.linspace(1, 8, 8)))
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight"):
        convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer)
    assert not (tmp_path / "out").exists()


def test_shards_and_index(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(apparatus.target())
    convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer, shard_bytes=100_000)
    index = json.loads((tmp_path / "out" / INDEX).read_text())
    assert index["metadata"]["total_size"] == checkpoint.stored_bytes
    found = open_checkpoint(tmp_path / "out")
    assert len(found.files) > 2
    for name in found.names():
        assert torch.equal(found.tensor(name), checkpoint.tensor(name)), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype(tmp_path: Path, dtype: str) -> None:
    checkpoint = open_checkpoint(apparatus.target())
    convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer, dtype)
    found = open_checkpoint(tmp_path / "out")
    for name in found.names():
        wanted = checkpoint.tensor(name).to(getattr(torch, dtype))
        assert torch.equal(found.tensor(name), wanted), name


def test_v95_values_beyond_float16_are_refused(tmp_path: Path) -> None:
    folder = apparatus.target()
    tensors = gguf_tensors(folder)
    array, _ = tensors["blk.0.ffn_down.weight"]
    tensors["blk.0.ffn_down.weight"] = (array * 1e6, None)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", gguf_fields(folder), tensors))
    with pytest.raises(
        WeightsError, match=r"down_proj\.weight' exceeds the range of torch\.float16"
    ):
        convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer, "float16")
    with pytest.raises(WeightsError, match=r"config\.json"):  # half-written: cannot be opened
        open_checkpoint(tmp_path / "out")
    convert_to_hf(checkpoint, tmp_path / "wide", no_tokenizer, "bfloat16")


def test_mistral_window_and_sampling_defaults(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", apparatus.target(), llama__attention__sliding_window=4)
    convert_to_hf(open_checkpoint(path), tmp_path / "window", no_tokenizer)
    config = open_checkpoint(tmp_path / "window").config
    assert (config.architecture, config.windows) == ("mistral", (4, 4))
    sampled = apparatus.target(generation={"temperature": 0.7, "top_k": 9})
    convert_to_hf(open_checkpoint(sampled), tmp_path / "sampled", no_tokenizer)
    assert open_checkpoint(tmp_path / "sampled").generation == {"temperature": 0.7, "top_k": 9}


def test_folder_in_use_and_unknown_dtype_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(apparatus.target())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        convert_to_hf(checkpoint, tmp_path, no_tokenizer)
    with pytest.raises(ConfigError, match="not an empty folder"):
        convert_to_hf(checkpoint, tmp_path / "file", no_tokenizer)
    with pytest.raises(ConfigError, match="'float8'"):
        convert_to_hf(checkpoint, tmp_path / "out", no_tokenizer, "float8")
