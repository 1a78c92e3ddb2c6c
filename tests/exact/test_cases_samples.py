"""Case V38 and what belongs to it: n samples of one prompt, the best of them, and the prompt they
share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from harness import Job, Rig, drive, prompt, rig

import apparatus
from foreword.engine import Engine
from foreword.errors import RequestError
from foreword.llm import LLM
from foreword.outputs import most_likely
from foreword.params import MAX_SAMPLES, SamplingParams
from foreword.sample.noise import derive

K = 4
METHODS = ("none", "ngram", "siblings", "suffix", "auto")


class Counting:
    """A target that counts the rows of each (token, position): what was computed more than once."""

    def __init__(self, inner: Rig) -> None:
        self._inner = inner.model
        self.vocab_size, self.kernels = inner.vocab_size, inner.model.kernels
        self.rows: Counter[tuple[int, int]] = Counter()

    def forward(self, batch: Any, kv: Any) -> np.ndarray:
        self.rows.update(zip(batch.token_ids.tolist(), batch.positions.tolist(), strict=True))
        return self._inner.forward(batch, kv)

    def times(self, ids: tuple[int, ...]) -> list[int]:
        """How often each position of a prompt was computed."""
        return [self.rows[token, position] for position, token in enumerate(ids)]


def samples(llm: LLM, ids: tuple[int, ...], **fields: Any) -> Any:
    given = {"temperature": 1.0, "seed": 1, "max_tokens": 12, **fields}
    return llm.generate([list(ids)], SamplingParams(**given))[0]


@pytest.mark.parametrize("method", METHODS)
def test_v38_each_sample_is_its_derived_seed_alone(method: str) -> None:
    """V38: n = 4, seed 1, temperature 1: four choices in order, distinct, the call reproducible;
    choice i is a request with derive(seed, i), alone; each has its own finish reason, and usage
    sums all. Temperature 0 with n = 2: two equal choices."""
    target, ids = rig(), prompt(40)
    alone = [target.plain(Job(ids, 12, 1.0, derive(1, i), logprobs=1)) for i in range(4)]
    stop = alone[2].token_ids[5]
    llm = target.door(target.engine(method, k=K))
    result = samples(llm, ids, n=4, logprobs=1, stop_token_ids=[stop])
    assert [output.index for output in result.outputs] == [0, 1, 2, 3]
    assert [output.seed for output in result.outputs] == [derive(1, i) for i in range(4)]
    assert result.outputs[0].seed == 1
    for output, single in zip(result.outputs, alone, strict=True):
        expected = single.token_ids
        if stop in expected:
            expected = expected[: expected.index(stop) + 1]
        assert tuple(output.token_ids) == expected
        assert output.finish_reason == ("stop" if stop in expected else "length")
        found = [
            row[token].logprob.hex()
            for token, row in zip(output.token_ids, output.logprobs, strict=True)
        ]
        assert found == [entry[1] for entry in single.logprobs[: len(expected)]]
    assert len({tuple(output.token_ids) for output in result.outputs}) == 4
    assert {output.finish_reason for output in result.outputs} == {"stop", "length"}
    assert result.usage.prompt_tokens == 40
    assert result.usage.completion_tokens == sum(len(one.token_ids) for one in result.outputs)
    assert result.usage.total_tokens == 40 + result.usage.completion_tokens
    again = samples(llm, ids, n=4, logprobs=1, stop_token_ids=[stop])
    assert [one.token_ids for one in again.outputs] == [one.token_ids for one in result.outputs]
    pair = samples(llm, ids, n=2, temperature=0.0).outputs
    assert pair[0].token_ids == pair[1].token_ids


def test_v38_streamed_is_the_first_choice() -> None:
    """V38: a stream has one sample: with the derived seed of choice i it is choice i."""
    target, ids = rig(), prompt(40)
    llm = target.door(target.engine("ngram", k=K))
    for output in samples(llm, ids, n=3).outputs:
        params = SamplingParams(temperature=1.0, seed=output.seed, max_tokens=12)
        assert "".join(text for text, _ in llm.stream(list(ids), params)) == output.text
    for field in ("n", "best_of"):
        with pytest.raises(RequestError, match=field):
            next(llm.stream(list(ids), SamplingParams(**{field: 2})))


@pytest.mark.parametrize("rows", [24, 256])
def test_samples_read_their_prompt_once(rows: int) -> None:
    """n = 5: every full page of the prompt is computed once, its last, partial page by each; equal
    prefixes of other prompts in the batch are shared as well. Without a prefix cache each sample
    reads its own."""
    target, block = rig(), 16
    ids = prompt(70)
    other = (*ids[:50], *prompt(20, 5))
    counting = Counting(target)
    engine = target.engine("ngram", k=K, block=block, rows=rows, model=counting)
    llm = target.door(engine)
    params = SamplingParams(temperature=1.0, seed=1, n=5, max_tokens=8)
    first, second = llm.generate([list(ids), list(other)], params)
    assert counting.times(ids)[:48] == [1] * 48
    assert counting.times(ids)[48:64] == [2] * 2 + [1] * 14  # from 48 on other has its own pages
    assert counting.times(other)[52:64] == [1] * 12
    assert min(counting.times(ids)[64:]) >= 5
    for output in (*first.outputs, *second.outputs):
        source = ids if output in first.outputs else other
        job = Job(source, 8, 1.0, output.seed, logprobs=None)
        assert tuple(output.token_ids) == target.plain(job).token_ids
    engine.parts.kv.check()
    lonely = Counting(target)
    engine = target.engine("ngram", k=K, block=block, rows=rows, prefix=False, model=lonely)
    (cold,) = target.door(engine).generate([list(ids)], params)
    assert [one.token_ids for one in cold.outputs] == [one.token_ids for one in first.outputs]
    assert min(lonely.times(ids)) == 5


@pytest.mark.parametrize(
    ("store", "slots"), [("paged", 112), ("paged", 160), ("paged", 1024), ("dense", 112)]
)
def test_samples_in_little_room_keep_their_bits(store: str, slots: int) -> None:
    """Six samples each of two prompts with a common beginning, room for one or two of them: whoever
    waits for pages, loses them or is preempted, the bits are plain ones, and all come to an end."""
    target = rig()
    trunk = prompt(40, 3)
    jobs = [
        Job((*trunk, *prompt(9, n % 2)), 14, 1.0, derive(5, n), priority=n % 3 % 2)
        for n in range(12)
    ]
    jobs = [replace(job, prompt_logprobs=1) if n == 4 else job for n, job in enumerate(jobs)]
    preemptions = 0
    for batch in (3, 16):
        engine = target.engine(
            "siblings", k=K, batch=batch, store=store, block=4, slots=slots, rows=24
        )
        results = drive(engine, [(n // 4, n, job) for n, job in enumerate(jobs)])
        target.same(jobs, results, f"batch {batch}")
        engine.parts.kv.check()
        assert engine.parts.kv.num_free_tokens == engine.parts.kv.capacity
        preemptions += engine.parts.scheduler.num_preemptions
    assert preemptions > 0 or slots == 1024


def test_an_aborted_first_sample_leaves_the_others_nothing_to_wait_for() -> None:
    """The one whose pages the others wait for is cut in the middle of its prompt."""
    target = rig()
    jobs = [Job(prompt(60), 6, 1.0, seed) for seed in range(3)]
    engine: Engine = target.engine("ngram", k=K, rows=16, block=4)
    running = [engine.add(job.request(str(n))) for n, job in enumerate(jobs)]
    engine.step()
    engine.step()
    assert len(engine.parts.scheduler.running) == 1
    engine.abort(running[0])
    while engine.has_work:
        engine.step()
    for job, sequence in zip(jobs[1:], running[1:], strict=True):
        assert tuple(sequence.output_ids) == target.plain(job).token_ids
    engine.parts.kv.check()


def test_best_of_returns_the_most_likely_in_order() -> None:
    """best_of 6, n 2: the two with the highest cumulative logprob of the mode asked for, best
    first, whether or not logprobs are shown; usage counts all six."""
    target, ids = rig(), prompt(30)
    for mode in ("raw", "processed"):
        llm = target.door(target.engine("ngram", k=K))
        fields: dict[str, Any] = {"top_k": 8, "temperature": 1.5, "logprobs_mode": mode}
        every = samples(llm, ids, n=6, logprobs=0, **fields).outputs
        sums = []
        for output in every:
            total = 0.0
            for token, row in zip(output.token_ids, output.logprobs, strict=True):
                total += row[token].logprob
            assert total == output.cumulative_logprob
            sums.append(total)
        order = sorted(range(6), key=lambda place: (-sums[place], place))
        for logprobs in (None, 2):
            best = samples(llm, ids, n=2, best_of=6, logprobs=logprobs, **fields)
            assert [one.seed for one in best.outputs] == [every[place].seed for place in order[:2]]
            assert [one.index for one in best.outputs] == [0, 1]
            assert [one.text for one in best.outputs] == [every[place].text for place in order[:2]]
            assert best.usage.completion_tokens == sum(len(one.token_ids) for one in every)
            shown = [one.cumulative_logprob for one in best.outputs]
            expected = [sums[place] for place in order[:2]] if logprobs is not None else [None] * 2
            assert shown == expected
            assert (best.outputs[0].logprobs is None) == (logprobs is None)
    ties = samples(llm, ids, n=1, best_of=3, temperature=0.0).outputs
    assert ties[0].seed == 1  # equal samples: the first made
    whole = samples(llm, ids, n=3, best_of=3).outputs
    assert [one.seed for one in whole] == [derive(1, n) for n in range(3)]


def test_a_failed_sample_is_the_last_choice_of_best_of() -> None:
    """Its cumulative logprob is that of fewer tokens, and so often the highest."""
    target, ids = rig(), prompt(30)
    llm = target.door(target.engine())
    group = [target_sample(llm, ids, seed) for seed in (3, 4, 5)]
    group[1].sequence.error = RuntimeError("planted")
    del group[1].sequence.logprobs[1:]
    for sample in group:
        sample.num_returned = 3
    assert most_likely(group) is group
    group[0].num_returned = 2
    assert group[1] not in most_likely(group)


def target_sample(llm: LLM, ids: tuple[int, ...], seed: int) -> Any:
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=6, logprobs=0)
    *_, (_, sample) = llm.stream(list(ids), params)
    return sample


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": MAX_SAMPLES + 1}, "best_of"),
        ({"best_of": 2.0}, "best_of"),
        ({"n": MAX_SAMPLES + 1}, "n must"),
        ({"n": 0}, "n must"),
    ],
)
def test_sample_counts_out_of_range_are_refused_by_name(fields: Any, named: str) -> None:
    with pytest.raises(RequestError, match=named):
        SamplingParams(**fields)


def test_siblings_draft_for_each_other() -> None:
    """Samples of one prompt at temperature 0 are equal: the later ones are drafted by the first,
    which is a step ahead because they waited for its pages."""
    target = rig(noise=apparatus.NOISE)
    llm = target.door(target.engine("siblings", k=K))
    outputs = samples(llm, prompt(40), n=3, temperature=0.0, max_tokens=24).outputs
    assert outputs[0].token_ids == outputs[1].token_ids == outputs[2].token_ids
    assert any("siblings" in output.sources for output in outputs[1:])
    for output in outputs:
        job = Job(prompt(40), 24, logprobs=None)
        assert tuple(output.token_ids) == target.plain(job).token_ids
