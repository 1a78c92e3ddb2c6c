"""Requests under different adapters in one engine: each as plain decoding alone would have it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Job, Rig, drive, equal, open_llm, plain_with, prompt

import apparatus
from adapter_files import factors, folder_of, merged
from foreword.errors import ConfigError, RequestError
from foreword.llm import LLM
from foreword.model.weights.open import open_checkpoint
from foreword.types import Request, SamplingParams

NAMES = ("red", "blue", None)
BACKENDS = [("torch", "float32"), ("cpu", "float32"), ("cpu", "bfloat16")]
every_backend = pytest.mark.parametrize(("backend", "numerics"), BACKENDS)


@cache
def model_path() -> Path:
    return apparatus.tiny_checkpoint(max_position=512)


@cache
def folder(name: str, rank: int = 4) -> Path:
    config = open_checkpoint(str(model_path())).config
    layers = factors(config, len(name) + rank, rank, size=0.25)
    return folder_of(apparatus.scratch() / f"{name}-{rank}", layers)


def named() -> dict[str, str]:
    return {name: str(folder(name)) for name in NAMES if name is not None}


@cache
def rig(backend: str, numerics: str) -> Rig:
    return Rig(open_llm(model_path(), numerics, backend, adapters=named()))


def under(rig: Rig, job: Job, name: str | None) -> Job:
    found = rig.llm.built.adapters.find(name)
    sha256 = "" if found is None else found.sha256
    return replace(job, adapter=name, adapter_sha256=sha256)


def jobs_of(rig: Rig, count: int, **more: Any) -> list[Job]:
    """Prompts of several lengths, some shared between adapters; greedy and sampled in turn."""
    made = []
    for number in range(count):
        temperature = 0.8 if number % 2 else 0.0
        words = prompt(19 + 7 * (number % 3), seed=number // 3)
        job = Job(words, max_tokens=18, temperature=temperature, seed=number, **more)
        made.append(under(rig, job, NAMES[number % 3]))
    return made


@every_backend
def test_adapters_change_what_is_said(backend: str, numerics: str) -> None:
    it = rig(backend, numerics)
    job = Job(prompt(20), max_tokens=18)
    said = [it.plain(under(it, job, name)).token_ids for name in NAMES]
    assert len(set(said)) == 3


@pytest.mark.parametrize("method", ["none", "ngram", "suffix", "recycle", "skip", "model", "auto"])
@every_backend
def test_speculation_with_mixed_adapters_is_exact(backend: str, numerics: str, method: str) -> None:
    it = rig(backend, numerics)
    draft = it if method == "model" else None
    it.exact(jobs_of(it, 6), method=method, draft=draft, k=5, tree="best_first", batch=4)


@every_backend
def test_chunks_preemption_and_wide_trees_with_mixed_adapters(backend: str, numerics: str) -> None:
    it = rig(backend, numerics)
    jobs = jobs_of(it, 9)
    one = max(job.positions for job in jobs)
    for rows, slots in ((9, 4096), (32, 2 * one + 64)):
        setting = {"method": "model", "draft": it, "k": 7, "tree": "best_first"}
        it.exact(jobs, rows=rows, slots=slots, batch=8, **setting)
    wrong = it.answers([replace(job, adapter=None, adapter_sha256="") for job in jobs], 8)

    def script(sequence: Any, budget: int) -> Any:
        """Drafts of the model without adapter: right now and then."""
        start = sequence.num_output
        for depth, token in enumerate(wrong(sequence)[start : start + min(budget, 6)]):
            yield depth - 1, token, 0.9

    it.exact(jobs, script=script, batch=9)


@every_backend
def test_a_cached_prefix_never_crosses_adapters(backend: str, numerics: str) -> None:
    it = rig(backend, numerics)
    job = Job(prompt(64), max_tokens=6)
    engine = it.engine(block=16)
    kv: Any = engine.parts.kv
    for turn in range(2):
        for name in NAMES:
            before = kv.prefix_hits
            mine = under(it, job, name)
            (result,) = drive(engine, [(0, 0, mine)])
            equal(it.plain(mine), result)
            assert kv.prefix_hits - before == (48 if turn else 0), (turn, name)
    red = under(it, job, "red")
    before = kv.prefix_hits
    forged = replace(job, salt=red.request("0").scope)
    (result,) = drive(engine, [(0, 0, forged)])
    equal(it.plain(job), result)
    assert kv.prefix_hits == before, "a salt cannot stand for an adapter"


def test_no_two_scopes_are_alike() -> None:
    """Of pairs (adapter, salt)."""
    base = Job(prompt(3)).request("0")
    red, other = {"adapter": "red", "adapter_sha256": "ab"}, {"adapter": "b", "adapter_sha256": "a"}
    made: list[Request] = [
        base,
        replace(base, salt="ab"),
        replace(base, salt="2:ab"),
        replace(base, **red),
        replace(base, **other),
        replace(base, salt="b", **other),
        replace(base, salt="0:", **red),
    ]
    assert len({request.scope for request in made}) == len(made)


@every_backend
def test_v39_chosen_logprobs_with_an_adapter(backend: str, numerics: str) -> None:
    """With speculation on, bit for bit those of plain decoding; by error those of the merged
    weights in float64, and so is their sum over 32 tokens."""
    it = rig(backend, numerics)
    job = under(it, Job(prompt(24), max_tokens=32, logprobs=1), "red")
    (result,) = it.exact([job], method="model", draft=it, k=4)
    if numerics != "float32":
        return
    wanted = reference_logprobs("red", (*job.prompt, *result.token_ids))[len(job.prompt) - 1 : -1]
    chosen = [entry.logprob for entry in result.sequence.logprobs]
    right = [row[token] for row, token in zip(wanted, result.token_ids, strict=True)]
    assert np.abs(np.array(chosen) - np.array(right)).max() < 1e-4
    assert math.isclose(sum(chosen), sum(right), abs_tol=1e-3)
    assert all(value < 0.0 for value in chosen)


def reference_logprobs(name: str, ids: tuple[int, ...]) -> np.ndarray:
    """float64 [ids, vocab] of the merged model."""
    from foreword.kernels.ops import RotaryTable
    from foreword.kernels.reference import ReferenceKernels
    from foreword.kv.pool import KVPool
    from foreword.model.batch import Batch, Segment
    from foreword.model.llama import Decoder
    from foreword.model.rope import inverse_frequencies

    checkpoint = open_checkpoint(str(model_path()))
    config = checkpoint.config
    tensors = {key: checkpoint.tensor(key) for key in checkpoint.names()}
    tensors = merged(tensors, factors(config, len(name) + 4, 4, size=0.25))
    table = RotaryTable.build(*inverse_frequencies(config.rope, config.head_dim, 512), 512)
    kernels = ReferenceKernels(config, "float32", table, torch.float64)
    model = Decoder(config, kernels, tensors.__getitem__, apparatus.NUM_TOKENS)
    shape = (config.num_layers, len(ids) + 1, config.num_kv_heads, config.head_dim)

    class Store:
        pool = KVPool(*shape, torch.float32)

    slots = np.arange(1, len(ids) + 1, dtype=np.int64)
    parents = tuple(range(-1, len(ids) - 1))
    segment = Segment(ids, parents, 0, slots, tuple(range(len(ids))))
    rows = torch.from_numpy(model.forward(Batch.of([segment]), Store())).double()  # type: ignore[arg-type]
    return torch.log_softmax(rows, -1).numpy()


def test_the_door_chooses_by_name_and_writes_it_down() -> None:
    llm = rig("cpu", "float32").llm
    params = SamplingParams(temperature=0.0, max_tokens=8)
    words = list(prompt(12))
    every = llm.generate([words] * 3, params, adapter=list(NAMES))
    alone = [llm.generate(words, params, adapter=name)[0] for name in NAMES]
    for many, one, name in zip(every, alone, NAMES, strict=True):
        assert many.outputs[0].token_ids == one.outputs[0].token_ids
        found = llm.built.adapters.find(name)
        expected = None if found is None else {"name": name, "sha256": found.sha256}
        assert many.outputs[0].receipt["adapter"] == expected
    assert len({tuple(one.outputs[0].token_ids) for one in every}) == 3
    streamed = [sample for _, sample in llm.stream(words, params, adapter="blue")]
    assert streamed[-1].sequence.output_ids == alone[1].outputs[0].token_ids


def test_bad_names_are_refused_before_anything_runs() -> None:
    llm = rig("cpu", "float32").llm
    words = list(prompt(5))
    for bad in ("green", "", 3):
        with pytest.raises(RequestError, match=r"there is no adapter .*loaded: red, blue"):
            llm.generate(words, adapter=bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="1 prompts but 2 adapters"):
        llm.generate(words, adapter=["red", "blue"])
    assert not llm.engine.has_work


def test_loading_and_unloading_while_the_engine_lives() -> None:
    llm: LLM = open_llm(model_path(), "float32", "cpu")
    params, words = SamplingParams(temperature=0.0, max_tokens=8), list(prompt(40))
    bare = llm.generate(words, params)[0].outputs[0].token_ids
    llm.load_adapter("one", str(folder("red")))
    first = llm.generate(words, params, adapter="one")[0].outputs[0]
    with pytest.raises(ConfigError, match="'one' is loaded already"):
        llm.load_adapter("one", str(folder("blue")))
    running = llm.stream(words, params, adapter="one")
    next(running)
    with pytest.raises(ConfigError, match="'one' is in use by 1 requests"):
        llm.unload_adapter("one")
    running.close()
    llm.unload_adapter("one")
    with pytest.raises(ConfigError, match="'one' is not loaded; loaded: none"):
        llm.unload_adapter("one")
    with pytest.raises(RequestError, match="there is no adapter 'one'"):
        llm.generate(words, params, adapter="one")
    llm.load_adapter("one", str(folder("blue")))
    again = llm.generate(words, params, adapter="one")[0].outputs[0]
    llm.close()
    it = rig("cpu", "float32")
    job = Job(tuple(words), max_tokens=8)
    assert tuple(bare) == it.plain(job).token_ids
    assert tuple(first.token_ids) == it.plain(under(it, job, "red")).token_ids
    assert tuple(again.token_ids) == it.plain(under(it, job, "blue")).token_ids, "not its old cache"
    assert first.receipt["adapter"]["name"] == again.receipt["adapter"]["name"]
    assert first.receipt["adapter"]["sha256"] != again.receipt["adapter"]["sha256"]


def test_bits_without_an_adapter_are_those_of_an_engine_without_adapters() -> None:
    it, bare = rig("cpu", "bfloat16"), Rig(open_llm(model_path(), "bfloat16", "cpu"))
    jobs = [under(it, job, None) for job in jobs_of(it, 4)]
    mixed = [*jobs, *jobs_of(it, 3)]
    for job, result in zip(jobs, it.run(mixed), strict=False):
        equal(plain_with(bare, job), result)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_folder_written_by_peft_says_what_peft_says(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(model_path()), dtype=torch.float32)
    config = peft.LoraConfig(
        r=6,
        lora_alpha=9,
        use_rslora=True,
        target_modules="all-linear",
        exclude_modules=["v_proj"],
        rank_pattern={"q_proj": 3, "layers.1.mlp.up_proj": 10},
        alpha_pattern={"down_proj": 20},
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    torch.manual_seed(3)
    adapted = peft.get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0.0, 0.2)
    adapted.save_pretrained(str(tmp_path))
    ids = list(prompt(21))
    with torch.no_grad():
        rows = adapted(torch.tensor([ids])).logits[0, -1, : apparatus.NUM_TOKENS].log_softmax(-1)
    llm = open_llm(model_path(), "float32", "cpu", adapters={"theirs": str(tmp_path)})
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)
    output = llm.generate(ids, params, adapter="theirs")[0].outputs[0]
    llm.close()
    assert output.logprobs is not None
    for token, entry in output.logprobs[0].items():
        assert abs(entry.logprob - float(rows[token])) < 1e-4
    assert output.token_ids[0] == int(rows.argmax())
