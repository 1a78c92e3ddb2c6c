"""Rotary frequencies against transformers' own functions and against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from foreword.model.config import RopeConfig
from foreword.model.rope import inverse_frequencies
from foreword.model.weights.fields import Fields
from foreword.model.weights.hf_rope import rope_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

CASES = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn untruncated": {**YARN, "truncate": False},
    "yarn attention factor": {**YARN, "attention_factor": 1.25},
    "yarn mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn one mscale": {**YARN, "mscale": 0.7},
}


def theirs(scaling: dict[str, Any], theta: float, head_dim: int) -> tuple[np.ndarray, float]:
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=128,
        rope_parameters={"rope_theta": theta, **scaling},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, device="cpu")
    return frequencies.double().numpy(), float(factor)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("theta", "head_dim"), [(10000.0, 16), (500000.0, 64)])
def test_v63_frequencies_equal_transformers(name: str, theta: float, head_dim: int) -> None:
    fields = Fields({"rope_theta": theta, "rope_scaling": CASES[name]}, "config.json")
    fields.raw = {**fields.raw, "max_position_embeddings": 128}
    ours, factor = inverse_frequencies(rope_config(fields), head_dim, 128)
    wanted, wanted_factor = theirs(CASES[name], theta, head_dim)
    # transformers works in float32: agreement to its rounding, not to ours
    np.testing.assert_allclose(ours, wanted, rtol=2e-6, atol=0)
    assert factor == pytest.approx(wanted_factor, rel=1e-12)


def test_v63_llama3_numbers() -> None:
    rope = RopeConfig(10000.0, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    found, factor = inverse_frequencies(rope, 16, 128)
    wanted = [1, 0.244385, 0.013042, 0.003953, 0.00125, 0.000395, 0.000125, 0.00004]
    np.testing.assert_allclose(found, wanted, atol=6e-7)
    ratios = inverse_frequencies(RopeConfig(10000.0), 16, 128)[0] / found
    np.testing.assert_allclose(ratios[:4], [1, 1.294, 7.667, 8], rtol=1e-3)
    assert factor == 1.0


def test_v88_explicit_factors_give_the_numbers_of_v63() -> None:
    scaled = RopeConfig(10000.0, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
    plain = RopeConfig(10000.0)
    wanted = inverse_frequencies(scaled, 16, 128)[0]
    factors = inverse_frequencies(plain, 16, 128)[0] / wanted
    found, _ = inverse_frequencies(RopeConfig(10000.0, factors=tuple(factors)), 16, 128)
    np.testing.assert_allclose(found, wanted, rtol=1e-15)


def test_default_is_float64_and_exact_at_powers() -> None:
    found, factor = inverse_frequencies(RopeConfig(10000.0), 16, 128)
    assert found.dtype == np.float64
    assert found.shape == (8,)
    assert found[0] == 1.0
    assert found[4] == pytest.approx(0.01, rel=1e-15)
    assert factor == 1.0


def test_yarn_without_original_uses_the_context() -> None:
    named = RopeConfig(10000.0, "yarn", 4.0, original_max_position=128)
    unnamed = RopeConfig(10000.0, "yarn", 4.0)
    np.testing.assert_array_equal(
        inverse_frequencies(named, 16, 128)[0], inverse_frequencies(unnamed, 16, 128)[0]
    )
