"""Case V64: a quantised KV cache is part of the model, so speculation changes nothing over it."""

from __future__ import annotations

from functools import cache

import pytest
from harness import Job, Rig, open_llm, prompt

import apparatus
from foreword.draft.scripted import chain, right_by_chance

BACKENDS = [("torch", "float32"), ("cpu", "bfloat16")]
JOBS = [
    Job(prompt(length, number), limit, temperature=float(number % 2), seed=number)
    for number, (length, limit) in enumerate([(1, 16), (9, 20), (40, 20), (130, 12)])
]


@cache
def kv_rig(backend: str, numerics: str, dtype: str) -> Rig:
    if backend == "cpu":
        pytest.importorskip("foreword.kernels.cpu._native", reason="the extension is not built")
    path = apparatus.tiny_checkpoint(max_position=512, dtype="bfloat16")
    return Rig(open_llm(path, numerics, backend, kv_cache_dtype=dtype))


@pytest.mark.parametrize(("backend", "numerics"), BACKENDS)
def test_v64_drafts_over_an_int8_cache_change_nothing(backend: str, numerics: str) -> None:
    """V64: target in int8; drafts right, wrong and mixed; the draft model's cache in int8, too."""
    target = kv_rig(backend, numerics, "int8")
    assert target.llm.built.kv_format == "int8"
    for share in (0.0, 0.7, 1.0):
        right = right_by_chance(share)
        script = chain(target.answers(JOBS, 6), 6, right, target.vocab_size)
        target.exact(JOBS, script=script, k=6, rows=32, threads=2)
    target.exact(JOBS, draft=target, k=4, nodes=24, tree="best_first", store="dense")


@pytest.mark.parametrize(("backend", "numerics"), BACKENDS)
def test_v64_a_drafter_in_the_same_format_is_always_right(backend: str, numerics: str) -> None:
    """V64: the target drafting for itself over the same KV format: every draft is accepted."""
    target, greedy = kv_rig(backend, numerics, "int8"), [Job(prompt(20, 5), 24)]
    (result,) = target.exact(greedy, draft=target, k=3)
    assert result.stats.num_drafted > 0
    assert result.stats.num_accepted >= result.stats.num_drafted - 3  # the last may overshoot


@pytest.mark.parametrize(("backend", "numerics"), BACKENDS)
def test_v64_the_format_decides_bits_and_the_receipt_says_so(backend: str, numerics: str) -> None:
    """V64: another format is another model; nothing falls back to one that was not asked for."""
    job = Job(prompt(64, 6), 24)
    rows = [kv_rig(backend, numerics, dtype).plain(job) for dtype in ("int8", "bfloat16")]
    assert rows[0].logprobs != rows[1].logprobs
