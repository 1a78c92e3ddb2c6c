"""Where a request ends, and that everything ends there: text, ids, logprobs and usage."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from harness import Job, prompt, rig

from foreword.draft.scripted import chain, right_until
from foreword.engine import Engine
from foreword.errors import RequestError
from foreword.llm import LLM
from foreword.outputs import CompletionOutput
from foreword.types import SamplingParams

K = 4


def door(job: Job, drafts: bool = True) -> LLM:
    """T's door; every step brings several right tokens, or one."""
    target = rig()
    known = target.plain(job).token_ids
    script = chain(lambda _: known, K, right_until(K), target.vocab_size)
    return target.door(target.engine(script=script, k=K) if drafts else target.engine(batch=1))


def one(llm: LLM, job: Job, **fields: Any) -> CompletionOutput:
    given: dict[str, Any] = {"temperature": job.temperature, "seed": job.seed, "logprobs": 1}
    given |= {"max_tokens": job.max_tokens, **fields}
    (output,) = llm.generate([list(job.prompt)], SamplingParams(**given))[0].outputs
    return output


def ends_as_one(output: CompletionOutput, job: Job, count: int) -> None:
    """The first `count` tokens of plain decoding, and nothing beyond in any list."""
    known = rig().plain(job)
    assert tuple(output.token_ids) == known.token_ids[:count]
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.text_offsets) == len(output.sources) == count
    for token, row, entry in zip(output.token_ids, output.logprobs, known.logprobs, strict=False):
        assert row[token].logprob.hex() == entry[1]
    assert output.cumulative_logprob == sum(
        row[token].logprob for token, row in zip(output.token_ids, output.logprobs, strict=True)
    )


LETTERS = Job(prompt(6), 24, temperature=1.0, seed=11, logprobs=1)


@pytest.mark.parametrize("drafts", [True, False])
def test_a_stop_string_ends_everything_at_one_token(drafts: bool) -> None:
    """Stop strings that end inside each token of the output in turn: the text ends before the stop
    string, or with it (include_stop_str_in_output) and not with the rest of the token; the ids keep
    the token whole; streamed the same, in parts that join."""
    llm = door(LETTERS, drafts)
    whole = one(llm, LETTERS)
    lengths = [*whole.text_offsets[1:], len(whole.text)]
    tried = 0
    for place in range(4, 24):
        start, end = whole.text_offsets[place], lengths[place]
        if end - start < 3:  # <t300> and the like: a stop that ends in the middle
            continue
        stop = whole.text[start - 1 : end - 2]
        if whole.text.index(stop) != start - 1:
            continue
        tried += 1
        for include in (False, True):
            fields = {"stop": ["\n\n\n", stop], "include_stop_str_in_output": include}
            output = one(llm, LETTERS, **fields)
            ends_as_one(output, LETTERS, place + 1)
            assert output.text == whole.text[: end - 2 if include else start - 1]
            assert (output.finish_reason, output.stop_reason) == ("stop", stop)
            assert output.text_offsets == [
                min(at, len(output.text)) for at in whole.text_offsets[: place + 1]
            ]
            params = SamplingParams(temperature=1.0, seed=11, max_tokens=24, **fields)
            parts = [text for text, _ in llm.stream(list(LETTERS.prompt), params)]
            assert "".join(parts) == output.text
    assert tried >= 3


@pytest.mark.parametrize("drafts", [True, False])
def test_a_stop_id_is_in_the_ids_and_in_the_text_only_if_included(drafts: bool) -> None:
    """As in vLLM: the id that ends a request is in its ids and logprobs, its text is not shown
    unless include_stop_str_in_output; ignore_eos does not switch stop ids off."""
    llm = door(LETTERS, drafts)
    whole = one(llm, LETTERS)
    for place in (4, 9, 14):
        token = whole.token_ids[place]
        first = whole.token_ids.index(token)
        for include, ignore in itertools.product((False, True), repeat=2):
            output = one(
                llm,
                LETTERS,
                stop_token_ids=[token],
                ignore_eos=ignore,
                include_stop_str_in_output=include,
            )
            ends_as_one(output, LETTERS, first + 1)
            shown = whole.token_ids[: first + include]
            assert output.text == llm.tokenizer.decode(shown)
            assert (output.finish_reason, output.stop_reason) == ("stop", token)
            assert output.text_offsets == whole.text_offsets[: first + 1]


def test_a_stop_given_as_a_special_token_is_named_as_given() -> None:
    """Watched for as an id, in the ids, not in the text; the reason is the string."""
    target = rig()
    sampled = replace(LETTERS, max_tokens=60)
    known = target.plain(sampled).token_ids
    token = next(token for token in known if token in target.tokenizer.special_ids)
    name = target.tokenizer.token_text(token)
    llm = target.door(target.engine("ngram", k=K))
    output = one(llm, sampled, stop=[name])
    ends_as_one(output, sampled, known.index(token) + 1)
    assert (output.finish_reason, output.stop_reason) == ("stop", name)
    assert name not in output.text


def test_a_stop_string_within_the_first_min_tokens_ends_nothing() -> None:
    """The same stop string, complete with token 6: it ends the text from min_tokens 5 down."""
    llm = door(LETTERS)
    whole = one(llm, LETTERS)
    stop = whole.text[: [*whole.text_offsets[1:], len(whole.text)][5]]
    for least in (0, 5, 6, 12):
        output = one(llm, LETTERS, stop=[stop], min_tokens=least)
        ends_as_one(output, LETTERS, 6 if least <= 5 else 24)
        assert output.text == ("" if least <= 5 else whole.text)


def test_the_context_ends_everything_at_one_token() -> None:
    """max_tokens None: to the end of the context, and no list goes further."""
    target = rig(max_position=64)
    job = Job(prompt(40), 24, 1.0, logprobs=1)
    llm = target.door(target.engine("ngram", k=K))
    output = one(llm, job, max_tokens=None)
    assert output.finish_reason == "length"
    assert len(output.token_ids) == len(output.logprobs or ()) == 24
    assert tuple(output.token_ids) == target.plain(job).token_ids


class Clock:
    """Time that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("foreword.engine.time", clock)
    monkeypatch.setattr("foreword.asks.time", clock)
    monkeypatch.setattr("foreword.runner.time", clock)
    return clock


def slowed(llm: LLM, clock: Clock, seconds: float) -> None:
    """Every pass takes so long."""
    inner = llm.engine.parts.model

    class Slow:
        vocab_size, kernels = inner.vocab_size, inner.kernels  # type: ignore[attr-defined]

        def forward(self, batch: Any, kv: Any) -> Any:
            clock.now += seconds
            return inner.forward(batch, kv)

    llm.engine.parts = replace(llm.engine.parts, model=Slow())


def test_a_time_limit_cuts_at_a_token(clock: Clock) -> None:
    """Passes of one second: what was emitted when the time is up stays, and nothing comes after it;
    the reason is "timeout". A limit inside the prompt leaves no token; the neighbours go on."""
    llm = door(LETTERS, drafts=True)
    slowed(llm, clock, 1.0)
    for limit, count in ((0.5, 5), (1.0, 5), (1.5, 10), (3.0, 15), (100.0, 24)):
        output = one(llm, LETTERS, time_limit=limit)
        ends_as_one(output, LETTERS, count)
        assert output.finish_reason == ("timeout" if count < 24 else "length")
        assert output.stop_reason is None
        assert output.text == rig().tokenizer.decode(output.token_ids)
    target = rig()
    engine: Engine = target.engine(batch=2, rows=16)
    llm = target.door(engine)
    slowed(llm, clock, 1.0)
    slow_prompt, other = Job(prompt(100), 4), Job(prompt(5, 2), 9)
    params = [
        SamplingParams(temperature=0.0, max_tokens=4, time_limit=3.0, prompt_logprobs=1),
        SamplingParams(temperature=0.0, max_tokens=9),
        SamplingParams(temperature=0.0, max_tokens=9, time_limit=0.5),  # never gets a seat
    ]
    ids = [list(slow_prompt.prompt), list(other.prompt), list(other.prompt)]
    results = llm.generate(ids, params)
    first, second, third = (result.outputs[0] for result in results)
    assert (first.token_ids, first.text, first.finish_reason) == ([], "", "timeout")
    assert len(results[0].prompt_logprobs or ()) < 100
    assert tuple(second.token_ids) == target.plain(other).token_ids
    assert (third.token_ids, third.finish_reason) == ([], "timeout")
    engine.parts.kv.check()
    assert engine.parts.kv.num_free_tokens == engine.parts.kv.capacity


def test_cancelling_cuts_at_a_token() -> None:
    """A stream that is closed after any number of parts: the text given, ids, logprobs and offsets
    all end at the last emitted token, the reason is "abort"."""
    llm = door(LETTERS)
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=24, logprobs=1, stop=["never"])
    for parts in range(1, 5):
        stream = llm.deltas(list(LETTERS.prompt), params)
        found = [next(stream) for _ in range(parts)]
        sample = found[-1][1]
        stream.close()
        output = llm.result(sample)
        ends_as_one(output, LETTERS, 5 * parts)
        assert output.finish_reason == "abort"
        assert [token for delta, _ in found for token in delta.token_ids] == output.token_ids
        given = "".join(delta.text for delta, _ in found)
        assert given + sample.stream.take() == output.text
        assert output.receipt["num_tokens"] == 5 * parts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("time_limit", 0),
        ("time_limit", -1.0),
        ("time_limit", float("inf")),
        ("time_limit", "5"),
        ("include_stop_str_in_output", 1),
        ("ignore_eos", 0),
        ("max_tokens", 0),
    ],
)
def test_ends_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})
