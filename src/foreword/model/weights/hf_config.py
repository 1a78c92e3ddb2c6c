"""config.json and generation_config.json -> ModelConfig, sampling defaults, end tokens.

A missing field means what it means in transformers, or is an error. Anything that would change the
numbers and is not implemented is refused by name. Knows no tensors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from foreword.errors import UnsupportedModel, WeightsError
from foreword.model.config import ModelConfig
from foreword.model.weights.fields import Fields
from foreword.model.weights.hf_rope import rope_config

logger = logging.getLogger(__name__)

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
QUANT_METHODS = ("gptq", "awq", "compressed-tensors")
_MISTRAL_WINDOW = 4096  # these two: what transformers assumes when the key is absent
_QWEN3_HEAD_DIM = 128


def model_config(raw: Mapping[str, Any], where: str) -> ModelConfig:
    """The config of a Hugging Face folder; `tied_head` is the file's flag (absent: true) and is
    settled once the tensors are known. Raises UnsupportedModel or WeightsError naming the field."""
    fields = Fields(raw, where)
    family = _family(fields)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    if family == "llama" or "num_key_value_heads" in raw:  # null: as many as heads
        kv_heads = fields.optional_integer("num_key_value_heads") or heads
    else:
        kv_heads = fields.integer("num_key_value_heads")
    unset_dim = _QWEN3_HEAD_DIM if family == "qwen3" else hidden // heads
    head_dim = fields.optional_integer("head_dim") or unset_dim
    check_heads(heads, kv_heads, head_dim, where)
    layers = fields.integer("num_hidden_layers")
    attention_bias = fields.flag("attention_bias") and family in ("llama", "qwen3")
    return ModelConfig(
        architecture=family,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps"),
        max_position=fields.integer("max_position_embeddings"),
        rope=rope_config(fields),
        tied_head=fields.flag("tie_word_embeddings", default=True),
        qkv_bias=attention_bias or family == "qwen2",
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias") and family == "llama",
        qk_norm=family == "qwen3",
        windows=_windows(fields, family, layers),
    )


def quantization_config(raw: Mapping[str, Any]) -> Any:
    """How the folder says its matrices are quantised; empty or None when it says nothing."""
    return raw.get("quantization_config") or raw.get("compression_config")


def check_heads(heads: int, kv_heads: int, head_dim: int, where: str) -> None:
    if heads % kv_heads:
        raise WeightsError(f"{where}: {heads} heads cannot share {kv_heads} key/value heads evenly")
    if head_dim < 2 or head_dim % 2:
        raise WeightsError(f"{where}: head_dim must be even and at least 2, got {head_dim}")


# Sampling fields of the file that are not implemented yet, with the value that means "off".
NOT_APPLIED = {"no_repeat_ngram_size": 0}
APPLIED = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty")


def generation_defaults(raw: Mapping[str, Any], where: str) -> dict[str, float | int]:
    """Those of APPLIED that the file sets; none when `do_sample` is false."""
    if raw.get("do_sample") is False:
        return {}
    for name, neutral in NOT_APPLIED.items():
        if raw.get(name) not in (None, neutral):
            logger.warning("%s: %s %s is not applied", where, name, raw[name])
    found: dict[str, float | int] = {}
    for name in APPLIED:
        value = raw.get(name)
        if value is None:
            continue
        whole = name == "top_k"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise WeightsError(f"{where}: {name} must be a number, got {value!r:.60}")
        if not math.isfinite(value):
            raise WeightsError(f"{where}: {name} must be finite, got {value!r}")
        found[name] = int(value) if whole else float(value)
    return found


def end_tokens(value: Any, where: str) -> frozenset[int]:
    """The ids of an `eos_token_id` entry: an integer, a list, or nothing."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise WeightsError(f"{where}: eos_token_id must hold token ids, got {token!r:.60}")
    return frozenset(ids)


def _family(fields: Fields) -> str:
    """llama | mistral | qwen2 | qwen3, by `model_type` and `architectures`, which must agree."""
    kind, listed = fields.get("model_type"), fields.get("architectures") or []
    runs = ", ".join(ARCHITECTURES.values())
    if kind is not None and kind not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{fields.where}: model_type {kind!r} is not supported; Foreword runs {runs}"
        )
    for family, name in ARCHITECTURES.items():
        if name in listed and kind in (family, None):
            chosen = family
            break
    else:
        if listed or kind is None:
            raise UnsupportedModel(
                f"{fields.where}: architectures {listed} with model_type {kind!r} is not supported;"
                f" Foreword runs {runs}"
            )
        chosen = kind
    activation = fields.get("hidden_act")
    if activation not in ("silu", None):
        raise UnsupportedModel(f"{fields.where}: hidden_act {activation!r} is not supported")
    quantised = quantization_config(fields.raw)
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
    if quantised and method not in QUANT_METHODS:
        raise UnsupportedModel(
            f"{fields.where}: quantization_config {method!r} is not supported;"
            f" Foreword reads {', '.join(QUANT_METHODS)} and GGUF files"
        )
    return str(chosen)


def _windows(fields: Fields, family: str, layers: int) -> tuple[int | None, ...]:
    """Per layer the sliding window, None = all keys; the rules of each family in transformers."""
    kinds = fields.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != layers:
            raise fields.fail("layer_types", f"a list of {layers} names")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise UnsupportedModel(f"{fields.where}: layer type {kind!r} is not supported")
    window = fields.optional_integer("sliding_window")
    if family == "llama":
        if kinds and "sliding_attention" in kinds:
            raise UnsupportedModel(f"{fields.where}: sliding_attention in a llama model")
        return (None,) * layers
    if family == "mistral":
        if "sliding_window" not in fields.raw:
            window = _MISTRAL_WINDOW
        unlike = "sliding_attention" if window is None else "full_attention"
        if kinds and unlike in kinds:
            raise UnsupportedModel(f"{fields.where}: mixed layer_types in a mistral model")
        return (window,) * layers
    if not fields.flag("use_sliding_window"):
        return (None,) * layers
    if kinds is None:
        first = fields.get("max_window_layers")
        if first is None:
            first = 28
        if isinstance(first, bool) or not isinstance(first, int) or first < 0:
            raise fields.fail("max_window_layers", "a whole number >= 0")
        kinds = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
