"""Rotary frequencies of each rope kind, in float64. Knows numbers only: no tensors, no positions.

An angle at position p and pair i is p * frequency[i]; cos and sin are multiplied by the attention
factor (1 for all kinds but yarn). Papers: RoFormer (2104.09864), position interpolation
(2306.15595), YaRN (2309.00071); llama3 is the smoothed interpolation of the Llama 3.1 release.
"""

from __future__ import annotations

import math

import numpy as np

from foreword.model.config import RopeConfig


def inverse_frequencies(
    rope: RopeConfig, head_dim: int, max_position: int
) -> tuple[np.ndarray, float]:
    """Frequencies float64 [head_dim / 2] and the attention factor.

    `max_position` (tokens) stands in for the original context length where the config has none.
    """
    base = rope.theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.factors is not None:
        assert len(rope.factors) == head_dim // 2, (len(rope.factors), head_dim)
        base = base / np.asarray(rope.factors, dtype=np.float64)
    original = rope.original_max_position or max_position
    if rope.kind == "default":
        return base, 1.0
    if rope.kind == "linear":
        assert rope.factor is not None
        return base / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(rope, base, original), 1.0
    assert rope.kind == "yarn", rope.kind
    return _yarn(rope, base, original, max_position)


def _llama3(rope: RopeConfig, base: np.ndarray, original: int) -> np.ndarray:
    """Keep short waves, divide long ones by the factor, blend in between."""
    factor, low, high = rope.factor, rope.low_freq_factor, rope.high_freq_factor
    assert factor is not None
    assert low is not None
    assert high is not None
    turns = original * base / (2 * math.pi)  # rotations over the original context
    share: np.ndarray = np.clip((turns - low) / (high - low), 0.0, 1.0)  # 1 = keep
    blended: np.ndarray = (1.0 - share) * base / factor + share * base
    return blended


def _yarn(
    rope: RopeConfig, base: np.ndarray, original: int, max_position: int
) -> tuple[np.ndarray, float]:
    """Blend by a ramp over pair indices between `beta_fast` and `beta_slow` rotations."""
    factor = rope.factor or max_position / original
    dim = 2 * len(base)
    low = _pair_with_rotations(rope.beta_fast or 32.0, dim, rope.theta, original)
    high = _pair_with_rotations(rope.beta_slow or 1.0, dim, rope.theta, original)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001  # an empty ramp is a step
    ramp = np.clip((np.arange(len(base), dtype=np.float64) - low) / width, 0.0, 1.0)
    return base / factor * ramp + base * (1.0 - ramp), _attention_factor(rope, factor)


def _pair_with_rotations(rotations: float, dim: int, theta: float, original: int) -> float:
    """The (fractional) pair index that turns `rotations` times over the original context."""
    return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def _attention_factor(rope: RopeConfig, factor: float) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(factor, rope.mscale) / _magnitude(factor, rope.mscale_all_dim)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0
