"""How far from the truth: at most twice plain PyTorch's own error in the same precision.

The truth is the reference backend in float64 on the same (bfloat16-valued) weights. Plain PyTorch
is transformers' model run eagerly in float32 or bfloat16. Two measures over all positions and ids
of several prompts: the largest absolute error of a logit, and the root mean square of the errors.
The rms says how precise a backend is; the maximum that no single row is off.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hugging import hugging_logits, hugging_model
from rig import CONFIGS, DTYPES, build, decoder, ids_of, one_pass, store, weights

PROMPTS = [ids_of(48, 40), ids_of(30, 41), ids_of(7, 42)]


@cache
def truth(name: str) -> np.ndarray:
    model = build(CONFIGS[name], backend="reference", compute=torch.float64)
    return np.concatenate([one_pass(model, ids, store(model, torch.float64)) for ids in PROMPTS])


@cache
def plain_error(name: str, numerics: str) -> tuple[float, float]:
    model = hugging_model(CONFIGS[name], weights(CONFIGS[name]), DTYPES[numerics])
    return measure(np.concatenate([hugging_logits(model, ids) for ids in PROMPTS]), truth(name))


def measure(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    error = np.abs(got.astype(np.float64) - wanted)
    return float(error.max()), float(np.sqrt(np.mean(error**2)))


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mistral", "mixed", "qwen2", "qwen3"])
def test_error_is_at_most_twice_plain_pytorchs(name: str, numerics: str, backend: str) -> None:
    model = decoder(name, numerics, backend)
    got = np.concatenate([one_pass(model, ids) for ids in PROMPTS])
    mine, plain = measure(got, truth(name)), plain_error(name, numerics)
    scale = float(np.sqrt(np.mean(truth(name) ** 2)))
    print(f"{name} {numerics} {backend}: max {mine[0]:.2e} (plain {plain[0]:.2e}), "
          f"rms {mine[1]:.2e} (plain {plain[1]:.2e}), logits rms {scale:.1f}")  # fmt: skip
    assert mine[0] <= 2 * plain[0], "largest error"
    assert mine[1] <= 2 * plain[1], "rms error"
    assert mine[1] > 0, "nothing was rounded: not the precision that was asked for"


def test_the_float64_reference_does_not_depend_on_its_partition() -> None:
    """The truth is one: other partitions move it by float64 rounding only."""
    model = build(CONFIGS["mixed"], backend="reference", compute=torch.float64, partition=7)
    got = np.concatenate([one_pass(model, ids, store(model, torch.float64)) for ids in PROMPTS])
    assert np.abs(got - truth("mixed")).max() < 1e-5  # logits are handed over as float32
