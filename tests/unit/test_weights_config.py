"""config.json and generation_config.json: end tokens, windows, rope spellings, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import apparatus
from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.config import ModelConfig, RopeConfig
from foreword.model.weights.hf_config import end_tokens, generation_defaults, model_config
from foreword.model.weights.open import open_checkpoint
from weight_files import copy_folder, tiny_gguf

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def raw(architecture: str = "llama", **changes: Any) -> dict[str, Any]:
    config = {
        "architectures": [apparatus.ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 512,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        **changes,
    }
    return {name: value for name, value in config.items() if value != "absent"}


def parsed(architecture: str = "llama", **changes: Any) -> ModelConfig:
    return model_config(raw(architecture, **changes), "config.json")


@pytest.mark.parametrize("first", [300, [300], [300, 301], None, "absent"])
@pytest.mark.parametrize("second", [301, [301, 302], [302, 301], None, "absent", "no file"])
def test_v25_end_tokens_are_the_union(tmp_path: Path, first: Any, second: Any) -> None:
    def change(config: dict[str, Any]) -> None:
        config.pop("eos_token_id")
        if first != "absent":
            config["eos_token_id"] = first

    folder = copy_folder(apparatus.target(), tmp_path / "model", change)
    (folder / "generation_config.json").unlink()
    if second != "no file":
        content = {} if second == "absent" else {"eos_token_id": second}
        (folder / "generation_config.json").write_text(json.dumps(content))

    def listed(value: Any) -> set[int]:
        return (
            {value} if isinstance(value, int) else set(value) if isinstance(value, list) else set()
        )

    assert open_checkpoint(folder).eos_ids == listed(first) | listed(second)


def test_v25_end_tokens_of_gguf(tmp_path: Path) -> None:
    ids = {"eos": 300, "eot": 301, "eom": 302}
    fields = {f"tokenizer__ggml__{name}_token_id": token for name, token in ids.items()}
    path = tiny_gguf(tmp_path / "model.gguf", apparatus.target(), **fields)
    assert open_checkpoint(path).eos_ids == {300, 301, 302}
    none = tiny_gguf(
        tmp_path / "none.gguf", apparatus.target(), tokenizer__ggml__eos_token_id=0xFFFFFFFF
    )
    assert open_checkpoint(none).eos_ids == set()


@pytest.mark.parametrize("value", ["2", 2.0, True, [1, None], -1, {"id": 1}])
def test_v25_bad_end_tokens_are_named(value: Any) -> None:
    with pytest.raises(WeightsError, match=r"generation_config\.json: eos_token_id"):
        end_tokens(value, "generation_config.json")


def test_v25_end_token_outside_the_vocabulary(tmp_path: Path) -> None:
    folder = copy_folder(
        apparatus.target(), tmp_path / "model", lambda config: config.update(eos_token_id=512)
    )
    with pytest.raises(WeightsError, match="end token 512 lies outside the vocabulary of 512"):
        open_checkpoint(folder)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"use_sliding_window": False}, (None, None)),
        ({"use_sliding_window": "absent"}, (None, None)),
        ({"max_window_layers": 1}, (None, 4)),
        ({"max_window_layers": 0}, (4, 4)),
        ({"max_window_layers": 2}, (None, None)),
        ({"sliding_window": None, "max_window_layers": 0}, (None, None)),
        ({"layer_types": ["sliding_attention", "full_attention"]}, (4, None)),
    ],
)
def test_v62_qwen_windows(
    architecture: str, changes: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    start = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 2}
    assert parsed(architecture, **{**start, **changes}).windows == windows


def test_v62_mistral_and_llama_windows() -> None:
    assert parsed("mistral", sliding_window=4).windows == (4, 4)
    assert parsed("mistral", sliding_window=None).windows == (None, None)
    assert parsed("mistral").windows == (4096, 4096)
    assert parsed("llama", sliding_window=4).windows == (None, None)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"rope_type": "llama3", "type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, **LLAMA3}},
        {
            "rope_parameters": {"type": "llama3", "rope_theta": 10000.0, **LLAMA3},
            "rope_theta": "absent",
        },
    ],
)
def test_v63_every_spelling_of_rope_is_read(spelling: dict[str, Any]) -> None:
    wanted = RopeConfig(10000.0, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    assert parsed(**spelling).rope == wanted


def test_v63_linear_yarn_and_default() -> None:
    assert parsed(rope_scaling={"type": "linear", "factor": 2}).rope == RopeConfig(
        10000.0, "linear", 2.0
    )
    assert parsed(rope_scaling=None, rope_theta=5e5).rope == RopeConfig(5e5)
    assert parsed(rope_theta="absent", rope_parameters={"rope_theta": 1e6}).rope == RopeConfig(1e6)
    yarn = parsed(rope_scaling={"type": "yarn", "factor": 4.0, "mscale": 0}).rope
    assert yarn == RopeConfig(10000.0, "yarn", 4.0, original_max_position=128)
    outside = parsed(rope_scaling={"type": "yarn"}, original_max_position_embeddings=32).rope
    assert outside == RopeConfig(10000.0, "yarn", 4.0, original_max_position=32)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "proportional", "mrope"])
def test_v63_other_rope_kinds_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"rope type '{kind}'"):
        parsed(rope_scaling={"rope_type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("scaling", "named"),
    [
        ({"rope_type": "default", "mrope_section": [1, 2]}, "mrope_section"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": "2"}, "factor"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_v63_bad_rope_fields_are_named(scaling: dict[str, Any], named: str) -> None:
    with pytest.raises(WeightsError, match=rf"config\.json.*{named}"):
        parsed(rope_scaling=scaling)


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [
        ("mamba", "MambaForCausalLM"),
        ("jamba", "JambaForCausalLM"),
        ("qwen3_next", "Qwen3NextForCausalLM"),
        ("mixtral", "MixtralForCausalLM"),
        ("qwen2_moe", "Qwen2MoeForCausalLM"),
        ("gemma2", "Gemma2ForCausalLM"),
    ],
)
def test_v65_other_architectures_are_refused_by_name(kind: str, architecture: str) -> None:
    for changes in (
        {"model_type": kind, "architectures": [architecture]},
        {"model_type": kind, "architectures": "absent"},
    ):
        with pytest.raises(UnsupportedModel, match=f"'{kind}'"):
            parsed(**changes)
    with pytest.raises(UnsupportedModel, match=architecture):
        parsed(architectures=[architecture])


@pytest.mark.parametrize("kind", ["linear_attention", "recurrent", "mamba", "chunked_attention"])
def test_v65_hybrid_layers_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"layer type '{kind}'"):
        parsed("qwen3", layer_types=["full_attention", kind])


@pytest.mark.parametrize("kind", ["mamba", "jamba", "qwen2moe", "rwkv6", "gemma2", "mistral"])
def test_v65_gguf_architectures_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", apparatus.target(), general__architecture=kind)
    with pytest.raises(UnsupportedModel, match=f"architecture '{kind}'"):
        open_checkpoint(path)


def test_v65_gguf_experts_are_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", apparatus.target(), llama__expert_count=8)
    with pytest.raises(UnsupportedModel, match="llama with experts"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes'"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": "512"}, "vocab_size"),
        ({"num_key_value_heads": 3}, "3 key/value heads"),
        ({"head_dim": 15}, "head_dim"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ],
)
def test_fields_that_cannot_work_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(WeightsError, match=rf"config\.json.*{named}"):
        parsed(**changes)


def test_biases_and_norms_follow_the_family() -> None:
    def switches(config: ModelConfig) -> tuple[bool, ...]:
        return (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm)

    assert switches(parsed("llama")) == (False, False, False, False)
    assert switches(parsed("llama", attention_bias=True, mlp_bias=True)) == (
        True,
        True,
        True,
        False,
    )
    assert switches(parsed("mistral")) == (False, False, False, False)
    assert switches(parsed("qwen2")) == (True, False, False, False)
    assert switches(parsed("qwen3")) == (False, False, False, True)
    assert switches(parsed("qwen3", attention_bias=True)) == (True, True, False, True)


def test_absent_sizes_mean_what_they_mean_in_transformers() -> None:
    assert parsed("llama", head_dim="absent").head_dim == 16
    assert parsed("qwen3", head_dim="absent").head_dim == 128
    assert parsed("llama", num_key_value_heads="absent").num_kv_heads == 4
    assert parsed("qwen2", num_key_value_heads=None).num_kv_heads == 4
    with pytest.raises(WeightsError, match="num_key_value_heads"):
        parsed("mistral", num_key_value_heads="absent")


def test_generation_defaults() -> None:
    sampling = {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": None,
        "repetition_penalty": 2,
    }
    wanted = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": 2.0}
    assert generation_defaults({"do_sample": True, **sampling}, "g") == wanted
    assert generation_defaults(sampling, "g") == wanted
    assert generation_defaults({"do_sample": False, **sampling}, "g") == {}
    for bad in ("0.6", True, float("nan"), [1]):
        with pytest.raises(WeightsError, match="g: temperature"):
            generation_defaults({"temperature": bad}, "g")
    with pytest.raises(WeightsError, match="g: top_k"):
        generation_defaults({"top_k": 2.5}, "g")


def test_generation_defaults_reach_the_checkpoint() -> None:
    folder = apparatus.target(generation={"do_sample": True, "temperature": 0.7})
    assert open_checkpoint(folder).generation == {"temperature": 0.7}


def test_a_generation_field_that_is_not_applied_is_said_aloud(caplog) -> None:
    from foreword.model.weights.hf_config import generation_defaults

    assert generation_defaults({"no_repeat_ngram_size": 3, "top_p": 0.8}, "here") == {"top_p": 0.8}
    assert "no_repeat_ngram_size 3 is not applied" in caplog.text
    caplog.clear()
    generation_defaults({"no_repeat_ngram_size": 0}, "here")
    assert not caplog.text
