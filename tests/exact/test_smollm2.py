"""Exactness on a real model: SmolLM2-135M-Instruct (Q4_1 GGUF) on the torch backend.

Prompts are Spec-Bench questions through the model's own chat template. Plain decoding runs each of
them alone; then all run together, drafted for, and every token id, logprob and finish reason must
be the same. CI takes a few short ones, the slow tests 40 questions of 128 tokens, greedy and
sampled.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from harness import Job, Result, Rig, smollm2

import apparatus
from foreword.build import load_model
from foreword.draft.scripted import chain, right_by_chance
from foreword.kv.pool import FORMATS, KVPool
from foreword.model.batch import Batch, Segment

SAMPLED = {"temperature": 0.8}
ENDS = frozenset({2})  # <|im_end|>, the model's EOS: honoured


def questions(count: int, max_tokens: int, longest: int = 600, **sampling: float) -> list[Job]:
    """Jobs for the first `count` Spec-Bench questions of at most `longest` tokens."""
    target, jobs = smollm2(), []
    for number, text in enumerate(apparatus.spec_bench_prompts(48)):
        ids = target.llm.encode_chat([{"role": "user", "content": text}])
        if len(ids) <= longest and len(jobs) < count:
            jobs.append(Job(tuple(ids), max_tokens, seed=number, ends=ENDS, **sampling))
    assert len(jobs) == count, f"only {len(jobs)} questions of {longest} tokens"
    return jobs


def summary(what: str, results: list[Result]) -> None:
    """Printed by -s; the numbers of the report."""
    steps = sum(result.stats.num_steps for result in results)
    tokens = sum(len(result.token_ids) for result in results)
    ended = sum(result.finish_reason == "stop" for result in results)
    drafted = sum(result.stats.num_drafted for result in results)
    accepted = sum(result.stats.num_accepted for result in results)
    print(
        f"{what}: {len(results)} outputs, {tokens} positions, {ended} ended by EOS, "
        f"{drafted} drafted, {accepted} accepted, mean acceptance length {tokens / steps:.2f}"
    )


def cut(target: Rig, layers: int) -> Rig:
    """The same checkpoint with its first layers only: a drafter that is often right."""
    config = target.checkpoint.config
    shorter = replace(config, num_layers=layers, windows=config.windows[:layers])
    draft = copy.copy(target)
    draft.checkpoint = replace(target.checkpoint, config=shorter)
    context, names = target.llm.built.context, target.tokenizer.vocab_size
    draft.model = load_model(target.config, draft.checkpoint, names, context)
    return draft


@pytest.mark.parametrize(("numerics", "limit"), [("float32", 16), ("bfloat16", 6)])
def test_a_few_questions_drafted_in_a_batch_equal_each_alone(numerics: str, limit: int) -> None:
    """V01 and V39 on a real model: greedy and sampled together, n-grams and a tree, small
    chunks."""
    target = smollm2(numerics)
    count = 2 if numerics == "float32" else 1
    jobs = questions(count, limit, 52) + questions(count, limit, 52, **SAMPLED)
    summary(
        f"ngram, {numerics}",
        target.exact(jobs, method="ngram", tree="best_first", nodes=12, batch=3, rows=48),
    )


def test_right_and_wrong_drafts_on_a_real_model() -> None:
    """V01: drafts that are right by chance, so that every length of accepted path occurs."""
    target = smollm2()
    jobs = questions(2, 16, 52)
    script = chain(target.answers(jobs), 5, right_by_chance(0.7), target.vocab_size)
    results = target.exact(jobs, script=script, k=5, batch=2)
    summary("scripted", results)
    assert sum(result.stats.num_accepted for result in results) > 5


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "temperature 0.8"])
def test_forty_questions_of_128_tokens(sampling: dict[str, float]) -> None:
    """V01: 40 questions, at most 128 tokens each, all alone and plain, then 16 at a time with
    n-grams and trees over the whole batch."""
    target = smollm2()
    jobs = questions(40, 128, **sampling)
    setting = {"method": "ngram", "tree": "best_first", "batch": 16, "slots": 8192}
    summary("ngram, 16 at a time", target.exact(jobs, nodes=32, **setting))
    summary("ngram, whole prompts", target.exact(jobs, nodes=63, rows=1024, block=32, **setting))


@pytest.mark.slow
def test_v01_a_shortened_model_drafts_and_divergence_stays_empty() -> None:
    """V01: 20 questions; the drafters are the model cut to 10 layers, n-grams, and scripts; the set
    of divergence points is empty for each of them."""
    target = smollm2()
    jobs = questions(10, 64) + questions(10, 64, **SAMPLED)
    right = chain(target.answers(jobs), 4, right_by_chance(0.5), target.vocab_size)
    for name, setting in {
        "ngram": {"method": "ngram", "k": 4},
        "10 layers": {"draft": cut(target, 10), "k": 3},
        "scripted": {"script": right, "k": 4},
    }.items():
        results = target.exact(jobs, batch=8, tree="best_first", nodes=32, slots=8192, **setting)
        summary(name, results)


@pytest.mark.slow
def test_eight_questions_in_bfloat16() -> None:
    target = smollm2("bfloat16")
    jobs = questions(4, 48) + questions(4, 48, **SAMPLED)
    setting = {"method": "ngram", "tree": "best_first", "nodes": 24, "batch": 8}
    summary("ngram, bfloat16", target.exact(jobs, **setting))


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_int8_keys_and_values_give_nearly_the_logits_of_bfloat16(backend: str) -> None:
    """The log-probabilities of 200 tokens of questions: the mean loss moves by less than 2 %, and
    the likeliest token is the same nearly everywhere."""
    if backend == "cpu":
        pytest.importorskip("foreword.kernels.cpu._native", reason="the cpu extension is not built")
    target = smollm2("bfloat16")
    context = target.llm.built.context
    config = replace(target.config, backend=backend)
    model = load_model(config, target.checkpoint, target.tokenizer.vocab_size, context)
    texts = apparatus.spec_bench_prompts(3)
    chats = [target.llm.encode_chat([{"role": "user", "content": text}]) for text in texts]
    ids = [token for chat in chats for token in chat][:200]
    shape, slots = target.checkpoint.config, np.arange(1, len(ids) + 1, dtype=np.int64)
    parents, rows = tuple(range(-1, len(ids) - 1)), tuple(range(len(ids)))
    batch = Batch.of([Segment(tuple(ids), parents, 0, slots, rows)])
    logits = {}
    for name in ("bfloat16", "int8"):
        pool = KVPool(shape.num_layers, 256, shape.num_kv_heads, shape.head_dim, FORMATS[name])
        with model.kernels.guard():
            logits[name] = model.forward(batch, SimpleNamespace(pool=pool)).astype(np.float64)
    model.kernels.close()
    losses = {name: _loss(part, ids) for name, part in logits.items()}
    print(backend, losses)
    assert abs(losses["int8"] / losses["bfloat16"] - 1) < 0.02
    agreed = (logits["int8"].argmax(-1) == logits["bfloat16"].argmax(-1)).mean()
    assert agreed > 0.93


def _loss(logits: np.ndarray, ids: list[int]) -> float:
    """Mean negative log-probability of every token after the first."""
    shifted = logits - logits.max(-1, keepdims=True)
    every = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return float(-every[np.arange(len(ids) - 1), ids[1:]].mean())
