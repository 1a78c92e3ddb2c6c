"""Cases of part C: EOS, stop ids, limits and finish reasons, wherever they fall in a draft."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import Job, declared, drive, equal, open_llm, plain_with, prompt, rig

import apparatus
from foreword.asks import Asks
from foreword.draft.scripted import chain, planting, right_until
from foreword.errors import RequestError
from foreword.llm import LLM
from foreword.types import SamplingParams

slow = pytest.mark.slow
ONE_BRANCH = {"num_branches": 1, "confidence_threshold": 0.0}
SAMPLED = Job(prompt(6), 24, temperature=1.0, seed=11)  # few repeats: every step can be an end


@pytest.mark.parametrize("k", [4, pytest.param(1, marks=slow), pytest.param(8, marks=slow)])
def test_v18_v20_v28_end_inside_an_accepted_path(k: int) -> None:
    """V18, V20, V28: an EOS at every step 1..2(K+1), so at every index of a block, K included:
    the output ends there, once, and counts what was emitted; a next turn on the same cache is
    as cold."""
    target = rig()
    for step in range(2 * (k + 1)):
        job = declared(target, SAMPLED, step)
        engine = target.engine(draft=target, options=ONE_BRANCH, k=k, batch=2)
        (result,) = drive(engine, [(0, 0, job)])
        equal(target.plain(job), result, f"step {step}")
        ids = result.token_ids
        assert result.finish_reason == "stop"
        assert [token in job.ends for token in ids] == [False] * (len(ids) - 1) + [True]
        assert result.stats.num_emitted == len(ids)
        assert sum((1 + n) * count for n, count in result.stats.histogram.items()) >= len(ids)
        turn = replace(job, prompt=(*job.prompt, *ids, *prompt(5, step)), max_tokens=6)
        (again,) = drive(engine, [(0, 1, turn)])
        equal(target.plain(turn), again, f"turn after step {step}")
        engine.parts.kv.check()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v19_a_drafted_eos_the_target_rejects(temperature: float) -> None:
    """V19: the EOS is planted at every index of otherwise right drafts; the target never wants
    it."""
    target, k = rig(), 4
    job = Job(prompt(8), 16, temperature=temperature)
    eos = next(i for i in range(256, 470) if i not in target.plain(job).token_ids)
    job = replace(job, ends=frozenset({eos}))
    for index in range(k):
        right = chain(target.answers([job], extra=k), k, right_until(k), target.vocab_size)
        (result,) = target.exact([job], script=planting(right, index, eos), k=k)
        assert result.finish_reason == "length"
        assert max(result.stats.histogram) <= index


def test_v20_eos_as_bonus_and_as_correction() -> None:
    """V20: the EOS is the target's own token, after a fully accepted path or in place of a wrong
    draft: nothing follows it."""
    target = rig()
    for wrong in (0, 1, 2):
        for step in range(5):
            job = declared(target, SAMPLED, step)
            answers = target.answers([job])
            script = chain(answers, 2, right_until(wrong), target.vocab_size)
            (result,) = target.exact([job], script=script, k=2)
            assert result.token_ids[-1] in job.ends


def edited(name: str, tmp_path: Path, **files: Any) -> LLM:
    """T with other JSON entries; a file given as None is removed."""
    folder = tmp_path / name
    shutil.copytree(apparatus.target(), folder)
    for stem, changes in files.items():
        path = folder / f"{stem}.json"
        if changes is None:
            path.unlink()
        else:
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return open_llm(folder, generation="auto")


def test_v25_every_declared_eos_id_ends(tmp_path: Path) -> None:
    """V25: the union of config.json and generation_config.json; lists in both orders, ints, and a
    file that is missing. The ids are ones the model produces at known steps."""
    target = rig(max_position=apparatus.CONTEXT)
    job = replace(SAMPLED, logprobs=None)
    (first,), (second,) = (declared(target, job, step).ends for step in (3, 9))
    forms: dict[str, tuple[dict[str, Any], set[int]]] = {
        "lists": ({"config": first, "generation_config": [second, first]}, {first, second}),
        "swapped": ({"config": [second], "generation_config": first}, {first, second}),
        "int": ({"config": second, "generation_config": second}, {second}),
        "missing": ({"config": [second, first], "generation_config": None}, {first, second}),
    }
    for name, (declaration, ends) in forms.items():
        files = {
            stem: None if value is None else {"eos_token_id": value}
            for stem, value in declaration.items()
        }
        llm = edited(name, tmp_path, **files)
        llm = _speculating(llm)
        params = SamplingParams(temperature=1.0, seed=11, max_tokens=24)
        (out,) = llm.generate([list(job.prompt)], params)[0].outputs
        expected = target.plain(replace(job, ends=frozenset(ends)))
        assert (tuple(out.token_ids), out.finish_reason) == (expected.token_ids, "stop"), name
        llm.close()


def _speculating(llm: LLM) -> LLM:
    from harness import Rig

    bench = Rig(llm)
    return bench.door(bench.engine(draft=bench, options=ONE_BRANCH, k=4))


def test_v26_ignore_eos_ignores_the_whole_list() -> None:
    """V26: with ignore_eos all 40 tokens come, the EOS ids of every file among them; without it
    the first ends the text. min_tokens is a later parameter."""
    target = rig()
    job = replace(SAMPLED, max_tokens=40, logprobs=None)
    ids = target.plain(job).token_ids
    llm = target.door(target.engine("ngram", k=4))
    ends = frozenset({ids[4], ids[9]})
    llm.built = replace(llm.built, checkpoint=replace(llm.built.checkpoint, eos_ids=ends))
    llm.asks = Asks(llm.built)
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=40)
    (ignoring,) = llm.generate([list(job.prompt)], replace(params, ignore_eos=True))[0].outputs
    assert tuple(ignoring.token_ids) == ids
    assert ignoring.finish_reason == "length"
    (ending,) = llm.generate([list(job.prompt)], params)[0].outputs
    first = min(ids.index(end) for end in ends)
    assert tuple(ending.token_ids) == ids[: first + 1]
    assert ending.finish_reason == "stop"
    stopping = replace(params, ignore_eos=True, stop_token_ids=[ids[9]])
    (stopped,) = llm.generate([list(job.prompt)], stopping)[0].outputs
    assert tuple(stopped.token_ids) == ids[: ids.index(ids[9]) + 1]


@pytest.mark.parametrize("count", [16, pytest.param(100, marks=slow)])
def test_v28_usage_and_counters_match_what_was_delivered(count: int) -> None:
    """V28: EOS inside blocks of many prompts: ids, logprobs entries and counters agree, and are
    those of plain decoding; the engine's sums are the sums of its requests."""
    target, k = rig(), 4
    jobs = [Job(prompt(2 + n % 23, n), 12, temperature=1.0, seed=n) for n in range(count)]
    jobs = [declared(target, job, n % 9) for n, job in enumerate(jobs)]
    engine = target.engine(draft=target, options=ONE_BRANCH, k=k, batch=8)
    results = drive(engine, [(0, place, job) for place, job in enumerate(jobs)])
    target.same(jobs, results)
    for result in results:
        stats = result.stats
        assert len(result.token_ids) == len(result.logprobs) == stats.num_emitted
        assert stats.num_accepted <= stats.num_drafted
        assert stats.num_accepted <= stats.num_emitted <= stats.num_accepted + stats.num_steps
    for name in ("num_steps", "num_emitted", "num_drafted", "num_accepted"):
        total = sum(getattr(result.stats, name) for result in results)
        assert getattr(engine.stats, name) == total, name


@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=slow) for k in (1, 2, 4, 5, 6, 7, 8))])
@pytest.mark.parametrize("limit", [None, 1000])
def test_v29_the_context_is_filled_and_not_passed(k: int, limit: int | None) -> None:
    """V29: T has 128 positions: a prompt of p <= 127 gives 128 - p tokens, a longer one is refused
    with both numbers."""
    target = rig(max_position=apparatus.CONTEXT)
    engine = target.engine(draft=target, options=ONE_BRANCH, k=k, slots=1024)
    llm = target.door(engine)
    params = SamplingParams(temperature=0.0, max_tokens=limit, ignore_eos=True)
    fitting = list(range(118, 128))
    outputs = llm.generate([list(prompt(p)) for p in fitting], params)
    for p, output in zip(fitting, outputs, strict=True):
        (out,) = output.outputs
        assert len(out.token_ids) == 128 - p
        assert out.finish_reason == "length"
        expected = plain_with(target, Job(prompt(p), 128 - p, logprobs=None), slots=256)
        assert tuple(out.token_ids) == expected.token_ids
    for p in (128, 129, 130):
        with pytest.raises(RequestError, match=rf"{p} tokens, the context is 128"):
            llm.generate([list(prompt(p))], params)
    engine.parts.kv.check()


@pytest.mark.parametrize("method", ["none", "self"])
def test_v30_finish_reason_at_the_boundary(method: str) -> None:
    """V30: an EOS, a stop id and a stop string on the last allowed token are stops; a plain cut is
    "length". Whole and streamed."""
    target = rig()
    job = replace(SAMPLED, logprobs=None)
    setting = {"draft": target, "options": ONE_BRANCH, "k": 4} if method == "self" else {}
    llm = target.door(target.engine(**setting))
    text = rig().tokenizer.decode(target.plain(job).token_ids)
    for step in (0, 1, 4, 5, 9):
        ended = declared(target, job, step)
        limit = len(target.plain(ended).token_ids)
        (end,) = ended.ends
        prefix = target.tokenizer.decode(target.plain(job).token_ids[:limit])
        params = SamplingParams(temperature=1.0, seed=11, max_tokens=limit, ignore_eos=True)
        variants = {
            "length": params,
            "stop": replace(params, stop_token_ids=[end]),
        }
        shown = target.tokenizer.decode([end])
        if shown and "\ufffd" not in shown and text.index(shown) == len(prefix) - len(shown):
            variants["stop "] = replace(params, stop=[shown])
        for reason, variant in variants.items():
            (out,) = llm.generate([list(job.prompt)], variant)[0].outputs
            assert (len(out.token_ids), out.finish_reason) == (limit, reason.strip())
            steps = list(llm.stream(list(job.prompt), variant))
            assert steps[-1][1].sequence.finish_reason == reason.strip()
            assert "".join(delta for delta, _ in steps) == out.text
