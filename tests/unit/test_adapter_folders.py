"""PEFT folders: what they mean, and which are refused, by the name of what is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import apparatus
from adapter_files import factors, folder_of
from foreword.errors import WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights.adapter import open_adapter
from foreword.model.weights.open import open_checkpoint

FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def shape() -> ModelConfig:
    return open_checkpoint(str(apparatus.target())).config


def written(path: Path, ranks: Any = 4, **config: Any) -> Path:
    return folder_of(path, factors(shape(), 1, ranks), **config)


def changed(path: Path, change: Any) -> Path:
    """A good folder whose tensors went through `change`."""
    written(path)
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return path


def test_every_number_comes_as_stored(tmp_path: Path) -> None:
    layers = factors(shape(), 1, 4)
    adapter = open_adapter(folder_of(tmp_path, layers), shape())
    assert len(adapter.layers) == 2
    assert adapter.rank == 4
    for got, wanted in zip(adapter.layers, layers, strict=True):
        assert set(got) == set(wanted)
        for name, part in wanted.items():
            assert got[name].down.dtype == part.down.dtype
            assert torch.equal(got[name].down, part.down)
            assert torch.equal(got[name].up, part.up)
            assert got[name].scale == part.scale


def test_scales_and_ranks_by_pattern(tmp_path: Path) -> None:
    ranks = {"query": 4, "key": 8, "down": 4}
    config = {
        "r": 4,
        "alpha": 6.0,
        "use_rslora": True,
        "target_modules": r"model\.layers\.\d+\.(self_attn\.[qk]_proj|mlp\.down_proj)",
        "rank_pattern": {"k_proj": 8},
        "alpha_pattern": {r"layers\.1\.mlp\.down_proj": 3, "^q": 1},
    }
    adapter = open_adapter(written(tmp_path, ranks, **config), shape())
    scales = {name: [layer[name].scale for layer in adapter.layers] for name in ranks}

    def single(value: float) -> float:
        return float(torch.tensor(value, dtype=torch.float32))

    assert scales["query"] == [3.0, 3.0]
    assert scales["key"] == [single(6.0 / math.sqrt(8))] * 2
    assert scales["down"] == [3.0, 1.5]


def test_layers_and_exclusions(tmp_path: Path) -> None:
    every = factors(shape(), 1, {"query": 4, "up": 4})
    one = [{}, {"up": every[1]["up"]}]
    path = folder_of(
        tmp_path,
        one,  # type: ignore[arg-type]
        target_modules=["q_proj", "up_proj", "fc1"],
        layers_to_transform=[1],
        exclude_modules=["self_attn.q_proj"],
    )
    adapter = open_adapter(path, shape())
    assert [sorted(layer) for layer in adapter.layers] == [[], ["up"]]


def test_all_linear_is_all_seven(tmp_path: Path) -> None:
    adapter = open_adapter(written(tmp_path, target_modules="all-linear"), shape())
    assert all(len(layer) == 7 for layer in adapter.layers)


def test_patterns_that_people_write_are_read(tmp_path: Path) -> None:
    """One of a popular fine-tuning tool."""
    attention, inner = "(?:self_attn|attention|attn)", "(?:mlp|feed_forward|ffn|dense)"
    names = "(?:(?:q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj))"
    pattern = (
        rf"(?:.*?(?:language|text).*?{attention}.*?{names}.*?)|"
        rf"(?:\bmodel\.layers\.[\d]{{1,}}\.(?:{attention}|{inner})\.{names})"
    )
    adapter = open_adapter(written(tmp_path, target_modules=pattern), shape())
    assert all(len(layer) == 7 for layer in adapter.layers)


def test_the_hash_is_of_weights_and_scales(tmp_path: Path) -> None:
    def sha(name: str, seed: int = 1, **config: Any) -> str:
        path = folder_of(tmp_path / name, factors(shape(), seed, 4), **config)
        return open_adapter(path, shape()).sha256

    base = sha("a")
    assert sha("b") == base
    assert sha("c", lora_dropout=0.3) == base
    assert sha("d", alpha=7.0) != base
    assert sha("e", use_rslora=True) != base
    assert sha("f", seed=2) != base


CONFIGS = {
    "peft_type is 'LOHA'": {"peft_type": "LOHA"},
    "task_type is 'SEQ_CLS'": {"task_type": "SEQ_CLS"},
    "DoRA is not supported": {"use_dora": True},
    "modules_to_save is .*whole trained modules": {"modules_to_save": ["lm_head"]},
    "fan_in_fan_out is True": {"fan_in_fan_out": True},
    "bias is 'all'": {"bias": "all"},
    "lora_bias is True": {"lora_bias": True},
    "init_lora_weights is 'pissa_niter_4'.*convert": {"init_lora_weights": "pissa_niter_4"},
    "trainable_token_indices": {"trainable_token_indices": [1]},
    "layer_replication": {"layer_replication": [[0, 1]]},
    "use_xyz is 3: Foreword does not know": {"use_xyz": 3},
    "target_modules holds embed_tokens": {"target_modules": ["q_proj", "embed_tokens"]},
    "target_modules holds lm_head": {"target_modules": ".*"},
    "target_modules fit no linear layer": {"target_modules": ["c_attn"]},
    "target_modules must be text or a list": {"target_modules": None},
    "target_modules is empty": {"target_modules": []},
    "target_modules is no regular expression": {"target_modules": "(q_proj"},
    "target_modules repeats a group": {"target_modules": "((.*)a)+q_proj"},
    "target_modules has too many repetitions": {"target_modules": ".*.*.*.*.*.*.*x"},
    "exclude_modules has a pattern of 2001": {"exclude_modules": "x" * 2001},
    "rank_pattern repeats a group": {"rank_pattern": {"(ab|a)*": 3}},
    "r must be a whole number": {"r": 0},
    "rank r must be a whole number 1 to": {"r": 10**6},
    "rank q_proj must be": {"rank_pattern": {"q_proj": 2.5}},
    "lora_alpha must be a finite number": {"lora_alpha": "16"},
    "layers_to_transform must hold layer numbers": {"layers_to_transform": ["1"]},
    "layers_pattern is 'h'": {"layers_pattern": "h"},
    "use_rslora must be true or false": {"use_rslora": "yes"},
}


@pytest.mark.parametrize("message", list(CONFIGS))
def test_a_config_that_means_something_else_is_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=f"adapter_config.json: .*{message}"):
        open_adapter(written(tmp_path, **CONFIGS[message]), shape())


def drop(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def put(name: str, value: Any) -> Any:
    return lambda tensors: tensors.__setitem__(name, value)


def spoil(value: float) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[FIRST][1, 2] = value

    return change


PREFIX = "base_model.model.model."
TENSORS = {
    "q_proj.lora_A.weight' is missing": drop(FIRST),
    "q_proj.lora_B.weight' is missing": drop(FIRST.replace("_A", "_B")),
    "q_proj.lora_A.weight' has shape \\[4, 63\\]": put(FIRST, torch.zeros(4, 63)),
    "q_proj.lora_A.weight' has shape \\[5, 64\\].*rank": put(FIRST, torch.zeros(5, 64)),
    "q_proj.lora_A.weight' has shape \\[64\\]": put(FIRST, torch.zeros(64)),
    "q_proj.lora_A.weight' has type I8": put(FIRST, torch.zeros(4, 64, dtype=torch.int8)),
    "q_proj.lora_A.weight' holds NaN": spoil(math.nan),
    "q_proj.lora_A.weight' holds .*infinity": spoil(-math.inf),
    "layers.2.*not among the target_modules": put(FIRST.replace(".0.", ".2."), torch.zeros(4, 64)),
    "lora_magnitude_vector.*DoRA": put(FIRST.replace("A", "magnitude_vector"), torch.zeros(64)),
    "lora_embedding_A.*embeddings": put(
        f"{PREFIX}embed_tokens.lora_embedding_A", torch.zeros(4, 512)
    ),
    "embed_tokens.weight.*trained embeddings": put(
        f"{PREFIX}embed_tokens.weight", torch.zeros(512, 64)
    ),
    "lm_head.*a trained head": put("base_model.model.lm_head.weight", torch.zeros(512, 64)),
    "q_proj.lora_B.bias.*biases": put(FIRST.replace("A.weight", "B.bias"), torch.zeros(64)),
}


@pytest.mark.parametrize("message", list(TENSORS))
def test_weights_that_do_not_fit_are_refused(message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=f"adapter_model.safetensors: tensor .*{message}"):
        open_adapter(changed(tmp_path, TENSORS[message]), shape())


def test_folders_that_hold_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"has no adapter_config\.json"):
        open_adapter(tmp_path / "nowhere", shape())
    written(tmp_path)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(WeightsError, match=r"has no adapter_model\.safetensors; .*converted"):
        open_adapter(tmp_path, shape())
    (tmp_path / "adapter_model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec")
    with pytest.raises(WeightsError, match="Git LFS"):
        open_adapter(tmp_path, shape())
    (tmp_path / "adapter_config.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(WeightsError, match="must hold a JSON object"):
        open_adapter(tmp_path, shape())
    (tmp_path / "adapter_config.json").write_text(json.dumps({"r": 4}), encoding="utf-8")
    with pytest.raises(WeightsError, match="peft_type is None"):
        open_adapter(tmp_path, shape())
