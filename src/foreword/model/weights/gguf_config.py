"""GGUF key-value fields -> ModelConfig, end tokens; the tensor table says what no field does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from foreword.errors import UnsupportedModel
from foreword.model.config import ModelConfig, RopeConfig
from foreword.model.weights.fields import Fields
from foreword.model.weights.hf_config import check_heads

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral files call themselves llama
_NO_TOKEN = 0xFFFFFFFF  # how writers say "none" in an unsigned field


def model_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    factors: tuple[float, ...] | None,
    where: str,
) -> ModelConfig:
    """`shapes`: GGUF tensor name -> shape. `factors`: the values of `rope_freqs.weight`, if any.

    Raises UnsupportedModel naming the architecture or field, WeightsError for bad values.
    """
    family = metadata.get("general.architecture")
    if family not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{where}: architecture {family!r} is not supported;"
            f" Foreword runs {', '.join(ARCHITECTURES)}"
        )
    fields = Fields(metadata, where, f"{family}.")
    if fields.get("expert_count"):
        raise UnsupportedModel(f"{where}: {family} with experts is not supported")
    heads, hidden = _same(fields, "attention.head_count"), fields.integer("embedding_length")
    kv_heads = heads
    if fields.get("attention.head_count_kv") is not None:
        kv_heads = _same(fields, "attention.head_count_kv")
    head_dim = fields.optional_integer("attention.key_length") or hidden // heads
    check_heads(heads, kv_heads, head_dim, where)
    for name in ("rope.dimension_count", "attention.value_length"):
        if fields.get(name) not in (None, head_dim):
            raise UnsupportedModel(f"{where}: {family}.{name} other than {head_dim} is unsupported")
    layers = fields.integer("block_count")
    vocab_size = shapes.get("token_embd.weight", (0,))[0] or fields.integer("vocab_size")
    return ModelConfig(
        architecture=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=_same(fields, "feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=shortest(fields.number("attention.layer_norm_rms_epsilon")),
        max_position=fields.integer("context_length"),
        rope=_rope(fields, factors, head_dim),
        tied_head="output.weight" not in shapes,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_down.bias" in shapes,
        qk_norm=family == "qwen3",
        windows=(fields.optional_integer("attention.sliding_window"),) * layers,
    )


def end_tokens(metadata: Mapping[str, Any]) -> frozenset[int]:
    """Every end-of-text, end-of-turn and end-of-message token the file declares."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = (metadata.get(f"tokenizer.ggml.{name}") for name in names)
    return frozenset(token for token in ids if token is not None and token != _NO_TOKEN)


def shortest(value: float) -> float:
    """The short decimal whose float32 is `value`: GGUF stores 1e-05 as 9.99999974e-06."""
    return float(str(np.float32(value)))


def _same(fields: Fields, name: str) -> int:
    """An integer that may be written once per layer; layers must agree."""
    value = fields.get(name)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise UnsupportedModel(
                f"{fields.where}: {fields.prefix}{name} differs between layers; not supported"
            )
        return Fields({fields.prefix + name: value[0]}, fields.where, fields.prefix).integer(name)
    return fields.integer(name)


def _rope(fields: Fields, factors: tuple[float, ...] | None, head_dim: int) -> RopeConfig:
    theta = shortest(fields.optional_number("rope.freq_base") or 10000.0)
    if factors is not None and len(factors) != head_dim // 2:
        raise UnsupportedModel(
            f"{fields.where}: tensor 'rope_freqs.weight' has {len(factors)} factors,"
            f" head_dim {head_dim} needs {head_dim // 2}"
        )
    kind = fields.get("rope.scaling.type") or "none"
    factor = fields.optional_number("rope.scaling.factor")
    if kind == "none":
        factor = fields.optional_number("rope.scale_linear")  # the older spelling of linear
        kind = "linear" if factor is not None and factor != 1.0 else "none"
    if kind == "none":
        return RopeConfig(theta, factors=factors)
    if kind == "linear":
        factor = factor or fields.number("rope.scaling.factor")
        return RopeConfig(theta, "linear", factor=shortest(factor), factors=factors)
    if kind != "yarn" or factors is not None:
        extra = " with rope_freqs.weight" if factors is not None else ""
        raise UnsupportedModel(f"{fields.where}: rope type {kind!r}{extra} is not supported")
    return _yarn(fields, theta)


def _yarn(fields: Fields, theta: float) -> RopeConfig:
    for name in ("yarn_log_multiplier", "yarn_ext_factor", "yarn_attn_factor", "attn_factor"):
        neutral = (None, 0.0) if name == "yarn_log_multiplier" else (None, -1.0, 1.0)
        if fields.get(f"rope.scaling.{name}") not in neutral:
            raise UnsupportedModel(
                f"{fields.where}: {fields.prefix}rope.scaling.{name} is not supported"
            )
    original = fields.optional_integer("rope.scaling.original_context_length")
    return RopeConfig(
        theta,
        "yarn",
        factor=shortest(fields.number("rope.scaling.factor")),
        original_max_position=original or fields.integer("context_length"),
        beta_fast=fields.optional_number("rope.scaling.yarn_beta_fast"),
        beta_slow=fields.optional_number("rope.scaling.yarn_beta_slow"),
    )
