"""The rope fields of config.json -> RopeConfig.

Three spellings live in the wild: `rope_theta` beside `rope_scaling` with "type" (oldest) or
"rope_type", and everything inside `rope_parameters`. Kinds and keys not run are refused by name.
"""

from __future__ import annotations

from foreword.errors import UnsupportedModel
from foreword.model.config import RopeConfig
from foreword.model.weights.fields import Fields

KINDS = ("default", "linear", "llama3", "yarn")
_KEYS = {
    "rope_type", "type", "rope_theta", "factor", "partial_rotary_factor", "finetuned",
    "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast",
    "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
}  # fmt: skip
_DEFAULT_THETA = 10000.0


def rope_config(fields: Fields) -> RopeConfig:
    """Raises UnsupportedModel for a kind or key that is not run, WeightsError for bad values."""
    name = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    raw = fields.get(name) or {}
    if not isinstance(raw, dict):
        raise fields.fail(name, "an object")
    rope = Fields(raw, f"{fields.where}: {name}")
    for key, value in raw.items():
        if key not in _KEYS or isinstance(value, dict):
            raise UnsupportedModel(f"{rope.where}: {key!r} is not supported")
    kind = raw.get("rope_type") or raw.get("type") or "default"
    if kind not in KINDS:
        raise UnsupportedModel(
            f"{rope.where}: rope type {kind!r} is not supported; Foreword runs {', '.join(KINDS)}"
        )
    for share in (rope, fields):
        if share.get("partial_rotary_factor") not in (None, 1):
            raise UnsupportedModel(f"{share.where}: partial_rotary_factor below 1 is not supported")
    theta = rope.optional_number("rope_theta") or fields.optional_number("rope_theta")
    if kind == "default":
        return RopeConfig(theta=theta or _DEFAULT_THETA)
    return _scaled(kind, theta or _DEFAULT_THETA, rope, fields)


def _scaled(kind: str, theta: float, rope: Fields, fields: Fields) -> RopeConfig:
    if kind == "linear":
        return RopeConfig(theta, kind, factor=rope.number("factor"))
    # A value outside the rope object wins (transformers does so for every kind with an original).
    original = fields.optional_integer("original_max_position_embeddings")
    original = original or rope.optional_integer("original_max_position_embeddings")
    original = original or fields.integer("max_position_embeddings")
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if low >= high:
            raise rope.fail("high_freq_factor", "above low_freq_factor")
        return RopeConfig(
            theta,
            kind,
            factor=rope.number("factor"),
            original_max_position=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    factor = rope.optional_number("factor")
    return RopeConfig(
        theta,
        kind,
        factor=factor or fields.integer("max_position_embeddings") / original,
        original_max_position=original,
        beta_fast=rope.optional_number("beta_fast"),
        beta_slow=rope.optional_number("beta_slow"),
        attention_factor=rope.optional_number("attention_factor"),
        mscale=_or_zero(rope, "mscale"),
        mscale_all_dim=_or_zero(rope, "mscale_all_dim"),
        truncate=rope.flag("truncate", default=True),
    )


def _or_zero(rope: Fields, name: str) -> float | None:
    """mscale may be written as 0, which means unset."""
    return None if rope.get(name) == 0 else rope.optional_number(name)
