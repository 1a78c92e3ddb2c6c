"""Sliding windows, cold prefill and ragged batches at the level of kernels: what a row may see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from rig import (
    BASE,
    CONFIGS,
    VOCAB,
    assert_same_bits,
    bits,
    build,
    decoder,
    ids_of,
    in_blocks,
    line,
    one_by_one,
    one_pass,
    store,
    straight,
    weights,
)

from foreword.model.batch import Batch, Segment
from foreword.model.config import ModelConfig
from foreword.model.llama import Decoder

ONE_LAYER = replace(BASE, num_layers=1, windows=(4,))
BACKENDS = [("torch", "float32"), ("torch", "bfloat16"), ("reference", "float32")]


@pytest.mark.parametrize("partition", [16, 8, 3])
@pytest.mark.parametrize(("backend", "numerics"), BACKENDS)
def test_v61_window_4_at_position_10_sees_7_to_10(
    backend: str, numerics: str, partition: int
) -> None:
    if backend == "torch" and partition == 3:
        partition = 32
    model, ids = build(ONE_LAYER, numerics, backend, partition=partition), ids_of(11)
    wanted = one_pass(model, ids)[10]
    for position in range(11):
        changed = list(ids)
        changed[position] = (ids[position] + 1) % VOCAB
        got = one_pass(model, changed)[10]
        moved = not np.array_equal(bits(got), bits(wanted))
        assert moved == (position >= 7), f"token {position} changed"


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_v60_prompts_of_1_to_20_with_drafts_over_the_window_edge(numerics: str) -> None:
    """Window 8; verify 4 drafts, two of them right; go on over what the wrong ones left."""
    model = decoder("mistral", numerics)
    ids = ids_of(32, 1)
    wanted = one_by_one(model, ids)
    for prompt in range(1, 21):
        kv = store(model)
        slots = straight(64)
        got = [model.forward(Batch.of([line(ids, slots, 0, prompt)]), kv)]
        at = prompt
        while at + 5 <= 32:
            wrong = [(token + 1) % VOCAB for token in ids[at + 3 : at + 5]]
            tokens = (*ids[at : at + 3], *wrong)  # root, two right drafts, two wrong ones
            segment = Segment(tokens, (-1, 0, 1, 2, 3), at, slots[: at + 5], tuple(range(5)))
            got.append(model.forward(Batch.of([segment]), kv)[:3])
            at += 3
        assert_same_bits(np.concatenate(got), wanted[:at], f"prompt of {prompt}")


@pytest.mark.parametrize("window", [1, 2, 7, 8, 9, 15, 16, 17, 31, 100])
def test_a_window_equals_full_attention_over_what_it_sees(window: int) -> None:
    """One layer, no rope in the way: the reference in float64 over the same keys."""
    config = replace(ONE_LAYER, windows=(window,))
    model, ids = build(config), ids_of(40, 2)
    truth = build(config, backend="reference", compute=torch.float64, partition=11)
    got = in_blocks(model, ids, [13])
    wanted = one_pass(truth, ids, store(truth, torch.float64))
    assert np.abs(got - wanted).max() < 1e-4
    full = one_pass(build(replace(config, windows=(None,))), ids)
    assert np.abs(full[:window] - got[:window]).max() < 1e-4
    if window < 40:
        assert np.abs(full[window:] - got[window:]).max() > 1e-3


def test_v62_only_the_windowed_layers_are_windowed() -> None:
    """Two layers, window 4 on the second: the first still carries token 0 to position 10."""
    ids = ids_of(11)
    changed = [(ids[0] + 1) % VOCAB, *ids[1:]]

    def moves(windows: tuple[int | None, int | None]) -> bool:
        model = build(replace(BASE, windows=windows))
        return not np.array_equal(one_pass(model, ids)[10], one_pass(model, changed)[10])

    assert moves((None, None))
    assert moves((None, 4))
    assert moves((4, None))
    assert not moves((4, 4))  # 3 + 3 positions back, no further
    plain, windowed = build(BASE), build(replace(BASE, windows=(100, 100)))
    assert_same_bits(one_pass(plain, ids), one_pass(windowed, ids))


@pytest.mark.parametrize(("name", "numerics"), [("llama", "float32"), ("mistral", "bfloat16")])
def test_v56_cold_prefill_over_several_chunks(name: str, numerics: str) -> None:
    """Unique first tokens; the chunks of 16 end where the plain prefill has not even begun."""
    model = decoder(name, numerics)
    for nonce in range(6):
        ids = [nonce, *ids_of(59, 3)]
        wanted = one_by_one(model, ids)
        assert_same_bits(in_blocks(model, ids, [16]), wanted)
        kv, slots = store(model), straight(70)  # a hit on the first chunk, then cold
        in_blocks(model, ids[:16], [16], kv, slots)
        got = model.forward(Batch.of([line(ids, slots, 16, 60)]), kv)
        assert_same_bits(got, wanted[16:])


def ragged(model: Decoder, prompts: list[list[int]], steps: int) -> list[list[np.ndarray]]:
    """Prefill all prompts in one pass, then greedy decoding of all rows together."""
    kv, count = store(model, slots=1024), len(prompts)
    places = [straight(100, 1 + 100 * index) for index in range(count)]
    ids = [list(prompt) for prompt in prompts]
    rows: list[list[np.ndarray]] = [[] for _ in prompts]
    done = [0] * count
    for _ in range(steps):
        segments = [
            Segment.chain(own[at:], slots[: len(own)])
            for own, at, slots in zip(ids, done, places, strict=True)
        ]
        done = [len(own) for own in ids]
        for index, logits in enumerate(model.forward(Batch.of(segments), kv)):
            rows[index].append(logits)
            ids[index].append(int(logits.argmax()))
    return rows


@pytest.mark.parametrize(("name", "numerics"), [("llama", "float32"), ("mixed", "bfloat16")])
def test_v66_v68_a_short_prompt_beside_a_long_one_over_40_steps(name: str, numerics: str) -> None:
    model, prompts = decoder(name, numerics), [ids_of(2, 4), ids_of(40, 5)]
    together = ragged(model, prompts, 40)
    for prompt, rows in zip(prompts, together, strict=True):
        assert_same_bits(np.stack(rows), np.stack(ragged(model, [prompt], 40)[0]))
        assert np.isfinite(rows).all()


@pytest.mark.parametrize(
    "prompt", [[2], [2, 2], [5, 2, 9, 2, 11], [7, 8, 2], [0], [1, 2, 0, 0, 2]], ids=str
)
def test_v67_ids_never_mask(prompt: list[int]) -> None:
    """Pad, EOS and zero ids are tokens like others: they are seen, and seen the same in a batch."""
    model = decoder("llama")
    alone = ragged(model, [prompt], 3)[0]
    together = ragged(model, [ids_of(30, 6), prompt, ids_of(3, 7)], 3)[1]
    assert_same_bits(np.stack(together), np.stack(alone))
    longer = one_pass(model, [*prompt, 3])[-1]
    for position, token in enumerate(prompt):
        other = [*prompt, 3]
        other[position] = (token + 17) % VOCAB
        assert not np.array_equal(one_pass(model, other)[-1], longer), f"id {token} was not seen"


def test_v68_the_embedding_of_a_pad_id_is_never_read() -> None:
    config: ModelConfig = CONFIGS["qwen3"]  # untied: the head stays as it is
    prompts = [[token for token in ids_of(50, 8) if token not in (0, 2)][:n] for n in (2, 40)]
    tensors: dict[str, Any] = dict(weights(config))
    plain = ragged(build(config, tensors=tensors), prompts, 1)
    embedding = tensors["model.embed_tokens.weight"].clone()
    embedding[[0, 2]] = float("nan")
    tensors["model.embed_tokens.weight"] = embedding
    perturbed = ragged(build(config, tensors=tensors), prompts, 1)
    for mine, theirs in zip(perturbed, plain, strict=True):
        assert_same_bits(np.stack(mine), np.stack(theirs))
