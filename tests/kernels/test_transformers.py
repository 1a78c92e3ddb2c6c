"""Agreement with transformers in float32 on the same weights: difference printed, tokens equal.

Token streams must be equal wherever the margin between the two best logits exceeds 1e-4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hugging import hugging_logits, hugging_model
from rig import BASE, CONFIGS, build, ids_of, in_blocks, one_pass, store, straight, weights
from transformers import AutoModelForCausalLM

import apparatus
from foreword.model.batch import Batch, Segment
from foreword.model.config import ModelConfig, RopeConfig
from foreword.model.llama import Decoder
from foreword.model.weights.open import open_checkpoint

LLAMA3 = RopeConfig(
    kind="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position=64,
)
YARN = RopeConfig(kind="yarn", factor=4.0, original_max_position=32)
ROPES = {
    "linear": RopeConfig(kind="linear", factor=2.0),
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, own ramp": replace(YARN, beta_fast=8.0, beta_slow=2.0, attention_factor=1.1),
    "theta": RopeConfig(theta=500000.0),
}
MEMORY: dict[str, ModelConfig] = {
    **{name: config for name, config in CONFIGS.items() if name != "biased"},
    "llama biased": replace(BASE, qkv_bias=True, output_bias=True, mlp_bias=True),
    "llama mha untied": replace(BASE, num_kv_heads=4, tied_head=False),
    **{name: replace(BASE, rope=rope, max_position=128) for name, rope in ROPES.items()},
    "qwen3 yarn": replace(CONFIGS["qwen3"], rope=YARN, max_position=128),
}


def compare(mine: np.ndarray, theirs: np.ndarray, what: str, limit: float = 1e-4) -> None:
    """limit: of the largest difference, relative to the largest logit (at least 1)."""
    difference = float(np.abs(mine - theirs).max())
    scale = max(1.0, float(np.abs(theirs).max()))
    print(f"{what}: max absolute difference {difference:.2e} over {mine.shape}, scale {scale:.1f}")
    assert difference <= limit * scale
    top = np.sort(theirs, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-4
    assert clear.any()
    assert np.array_equal(mine.argmax(1)[clear], theirs.argmax(1)[clear])


@pytest.mark.parametrize("name", MEMORY)
@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_logits_agree(name: str, backend: str) -> None:
    config = MEMORY[name]
    ids = ids_of(100 if backend == "torch" else 40, 50)
    if backend == "reference" and config.rope.kind != "default":
        ids = ids_of(72, 50)  # past the original context
    theirs = hugging_logits(hugging_model(config, weights(config)), ids)
    compare(one_pass(build(config, backend=backend), ids), theirs, f"{name}, {backend}")


DISK: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama untied": {"tied": False},
    "llama bfloat16": {"dtype": "bfloat16"},
    "mistral window": {"architecture": "mistral", "sliding_window": 8},
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3", "tied": False},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "llama3": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        }
    },
}


def opened(path: Path) -> Decoder:
    checkpoint = open_checkpoint(path)
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    return build(checkpoint.config, tensors=tensors)


def greedy(model: Decoder, prompt: Sequence[int], count: int) -> tuple[list[int], np.ndarray]:
    ids, kv, rows = list(prompt), store(model), []
    slots, at = straight(len(prompt) + count), 0
    for _ in range(count):
        segment = Segment.chain(ids[at:], slots[: len(ids)])
        at = len(ids)
        rows.append(model.forward(Batch.of([segment]), kv)[0])
        ids.append(int(rows[-1].argmax()))
    return ids[len(prompt) :], np.stack(rows)


@pytest.mark.parametrize("name", DISK)
def test_checkpoints_on_disk_agree_token_for_token(name: str) -> None:
    path = apparatus.tiny_checkpoint(**DISK[name])
    model = opened(path)
    theirs = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ids = ids_of(110, 51, vocab=400)
    compare(in_blocks(model, ids, [110]), hugging_logits(theirs, ids), name)
    prompt = ids[:80]
    stream, rows = greedy(model, prompt, 24)
    with torch.no_grad():
        wanted = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=24, min_new_tokens=24, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )[0, 80:].tolist()  # fmt: skip
    for step, (token, other) in enumerate(zip(stream, wanted, strict=True)):
        top = np.sort(rows[step])
        if token != other:
            margin = top[-1] - top[-2]
            print(f"{name}: streams part at step {step}, margin {margin:.2e}")
            assert margin <= 1e-4
            break


def test_v66_agrees_with_a_padded_batch() -> None:
    """transformers needs pads, a mask and positions for ragged rows; we have only content."""
    model = build(BASE)
    theirs = hugging_model(BASE, weights(BASE))
    short, long = ids_of(2, 52), ids_of(40, 53)
    padded = torch.tensor([[0] * 38 + short, long])
    mask = torch.tensor([[0] * 38 + [1] * 2, [1] * 40])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = theirs(padded, attention_mask=mask, position_ids=positions).logits[:, -1].numpy()
    mine = np.stack([one_pass(model, ids)[-1] for ids in (short, long)])
    compare(mine, logits, "padded batch")


@pytest.mark.slow
def test_smollm2_agrees(smollm2_path: Path) -> None:
    """The real model from its GGUF file: transformers on the same dequantised weights."""
    checkpoint = open_checkpoint(smollm2_path)
    config = replace(checkpoint.config, max_position=2048)
    tensors = {name: checkpoint.tensor(name).float() for name in checkpoint.names()}
    model = build(config, tensors=tensors, partition=128)
    theirs = hugging_model(config, tensors)
    for seed, count in ((60, 5), (61, 130), (62, 300)):
        ids = [1, *ids_of(count, seed, config.vocab_size)]
        kv = store(model)
        compare(one_pass(model, ids, kv), hugging_logits(theirs, ids), f"SmolLM2, {count + 1} ids")
