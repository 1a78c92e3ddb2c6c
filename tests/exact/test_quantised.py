"""Speculation over quantised models: a16 and a8 emit what plain decoding emits, to the bit."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import pytest
from harness import Job, Rig, open_llm, prompt

import apparatus
from foreword.draft.scripted import chain, right_by_chance
from quantised_files import (
    compressed_tensors_config,
    gptq,
    int_quantized,
    quantised_folder,
)

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
JOBS = [
    Job(prompt(length, number), limit, temperature=float(number % 2), seed=number)
    for number, (length, limit) in enumerate([(1, 20), (7, 24), (33, 20), (64, 12), (40, 24)])
]


def folder(kind: str) -> Path:
    """The tiny model with its products held in this way."""
    target = Path(tempfile.mkdtemp(dir=apparatus.scratch()))
    source = apparatus.tiny_checkpoint(max_position=512)
    if kind == "gptq":
        return quantised_folder(target, source, gptq, GPTQ, 4, 32, symmetric=False).quantised
    config = compressed_tensors_config(8, -1, True, "int-quantized")
    return quantised_folder(target, source, int_quantized, config, 8, -1).quantised


@cache
def quantised_rig(kind: str, numerics: str, backend: str = "torch") -> Rig:
    """gptq, compressed-tensors: a folder; int8, int4: quantised at load."""
    if kind in ("int8", "int4"):
        path = apparatus.tiny_checkpoint(max_position=512)
        return Rig(open_llm(path, numerics, backend, quantization=kind))
    return Rig(open_llm(folder(kind), numerics, backend))


KINDS = ("gptq", "compressed-tensors", "int8", "int4")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_mode = pytest.mark.parametrize("numerics", ["a16", "a8"])


@each_mode
@each_kind
def test_v01_drafts_of_any_quality_change_nothing(kind: str, numerics: str) -> None:
    target, k = quantised_rig(kind, numerics), 6
    for share in (0.0, 0.7, 1.0):
        right = right_by_chance(share)
        script = chain(target.answers(JOBS, k), k, right, target.vocab_size)
        results = target.exact(JOBS, script=script, k=k, rows=32, threads=2)
    assert sum(result.stats.num_accepted for result in results) > 20


@each_mode
@each_kind
def test_v03_trees_of_a_draft_model_change_nothing(kind: str, numerics: str) -> None:
    target = quantised_rig(kind, numerics)
    draft = quantised_rig("int4", numerics)
    options = {"num_branches": 3, "confidence_threshold": 0.0}
    target.exact(
        JOBS, draft=draft, options=options, tree="best_first", nodes=24, k=4, store="dense"
    )


@each_mode
def test_the_reference_backend_too(numerics: str) -> None:
    target, jobs = quantised_rig("gptq", numerics, "reference"), JOBS[:2]
    script = chain(target.answers(jobs, 4), 4, right_by_chance(0.7), target.vocab_size)
    target.exact(jobs, script=script, k=4)


@pytest.mark.parametrize("numerics", [pytest.param("a16", marks=pytest.mark.slow), "a8"])
def test_v84_a_gguf_file_as_it_is(numerics: str) -> None:
    """SmolLM2's Q4_1 file: its integers are used, not its dequantised weights, and drafts are free
    to be wrong."""
    llm = open_llm(apparatus.smollm2_path(), numerics, max_model_len=256)
    target = Rig(llm)
    assert target.checkpoint.is_grouped("model.layers.0.mlp.down_proj.weight")
    ids = tuple(target.tokenizer.encode("The capital of France is"))
    jobs = [Job(ids, 8), Job(ids[:3], 6, temperature=1.0)]
    script = chain(target.answers(jobs, 4), 4, right_by_chance(0.7), target.vocab_size)
    target.exact(jobs, script=script, k=4)
    assert "Paris" in target.tokenizer.decode(list(target.plain(jobs[0]).token_ids))
    llm.close()
