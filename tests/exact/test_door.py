"""The library door under trouble: interrupts, threads, bad input. Nothing is lost or moved.

Each test ends by asking the same engine for the same tokens again.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import apparatus
from foreword import LLM, SamplingParams
from foreword.errors import ConfigError, RequestError
from foreword.sample.noise import derive

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = ["one two one two", "abc abc abc", "Once"]


@pytest.fixture(scope="module")
def llm() -> LLM:
    """At most four tokens a step: the twelve of a request take three steps, however well what was
    learned from the last run guesses."""
    short = {"num_speculative_tokens": 3}
    return LLM(str(apparatus.target()), max_num_seqs=4, threads=1, speculative_config=short)


def tokens(llm: LLM) -> list[list[int]]:
    return [answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    return tokens(llm)


def settled(llm: LLM) -> None:
    """Nobody is queued, nothing is held."""
    scheduler, kv = llm.engine.parts.scheduler, llm.engine.parts.kv
    assert not scheduler.running
    assert not scheduler.waiting
    kv.check()
    assert kv.num_free_tokens == kv.capacity


STATIONS = ["_plan", "_draft", "_accept", "_emit"]


@pytest.mark.parametrize("station", STATIONS)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [1, 3])
def test_an_interrupt_at_any_station_leaves_an_exact_engine(
    llm: LLM, expected: list[list[int]], monkeypatch, station: str, when: str, step: int
) -> None:
    calls = 0
    original = getattr(llm.engine, station)

    def interrupted(*arguments):
        nonlocal calls
        calls += 1
        if calls == step and when == "before":
            raise KeyboardInterrupt
        result = original(*arguments)
        if calls == step:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, station, interrupted)
        with pytest.raises(KeyboardInterrupt):
            tokens(llm)
    settled(llm)
    assert tokens(llm) == expected
    settled(llm)


def test_an_interrupt_after_a_stop_leaves_no_finished_request_behind(llm: LLM, monkeypatch) -> None:
    stopped = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[tokens(llm)[0][3]])
    original = llm.engine._emit

    def interrupted(entries, outcomes):
        if any(outcome.sequence.finish_reason for outcome in outcomes):
            raise KeyboardInterrupt
        return original(entries, outcomes)

    with monkeypatch.context() as patched:
        patched.setattr(llm.engine, "_emit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS[0], stopped)
    settled(llm)
    assert llm.generate(PROMPTS[0], stopped)[0].outputs[0].finish_reason == "stop"


def test_interleaved_streams_lose_no_text(llm: LLM, expected: list[list[int]]) -> None:
    streams = [llm.stream(prompt, GREEDY) for prompt in PROMPTS]
    texts, ids = [""] * len(streams), [[]] * len(streams)
    alive = list(range(len(streams)))
    while alive:
        for number in tuple(alive):
            try:
                piece, sample = next(streams[number])
            except StopIteration:
                alive.remove(number)
                continue
            texts[number] += piece
            ids[number] = sample.sequence.output_ids
    assert ids == expected
    assert texts == [answer.outputs[0].text for answer in llm.generate(PROMPTS, GREEDY)]
    settled(llm)


def test_streams_in_threads_beside_a_batch(llm: LLM, expected: list[list[int]]) -> None:
    found: dict[int, list[int]] = {}

    def drain(number: int) -> None:
        for _, sample in llm.stream(PROMPTS[number], GREEDY):
            found[number] = sample.sequence.output_ids

    threads = [threading.Thread(target=drain, args=(number,)) for number in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    batch = tokens(llm)
    for thread in threads:
        thread.join(60)
    assert batch == expected
    assert [found[number] for number in range(len(PROMPTS))] == expected
    settled(llm)


def test_a_stream_finished_in_another_thread(llm: LLM, expected: list[list[int]]) -> None:
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    last: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: last.extend(sample.sequence.output_ids for _, sample in stream)
    )
    thread.start()
    thread.join(60)
    assert last[-1] == expected[0]
    settled(llm)


def test_a_closed_stream_releases_everything(llm: LLM, expected: list[list[int]]) -> None:
    stream = llm.stream(PROMPTS[0], GREEDY)
    next(stream)
    stream.close()
    settled(llm)
    assert tokens(llm) == expected


def test_a_stream_of_several_samples_is_refused_before_anything_is_queued(llm: LLM) -> None:
    with pytest.raises(RequestError, match="n = 2"):
        next(llm.stream("x", SamplingParams(n=2)))
    settled(llm)


def test_one_bad_prompt_refuses_the_call_and_loses_nothing(
    llm: LLM, expected: list[list[int]]
) -> None:
    with pytest.raises(RequestError, match="prompt 1"):
        llm.generate(["fine", [99999]], GREEDY)
    settled(llm)
    assert tokens(llm) == expected


PROMPT_FORMS = [
    [97, 98, 99],
    (97, 98, 99),
    np.array([97, 98, 99]),
    {"prompt_token_ids": [97, 98, 99]},
    {"prompt": "abc"},
    "abc",
    [[97, 98, 99]],
    [np.array([97, 98, 99], dtype=np.int32)],
    [{"prompt": "abc"}],
]


@pytest.mark.parametrize("form", PROMPT_FORMS, ids=repr)
def test_every_form_of_a_prompt_means_the_same(llm: LLM, form) -> None:
    (answer,) = llm.generate(form, GREEDY)
    assert answer.prompt_token_ids == [97, 98, 99]
    assert answer.outputs[0].token_ids == llm.generate("abc", GREEDY)[0].outputs[0].token_ids


BAD_PROMPTS = ["", [], [[]], [-1], [2**63], [1.5], [True], ["a", 1], {"text": "a"}, {}, [None]]


@pytest.mark.parametrize("form", BAD_PROMPTS, ids=repr)
def test_bad_prompts_are_refused_by_name(llm: LLM, form) -> None:
    if form == []:
        assert llm.generate(form, GREEDY) == []
        return
    with pytest.raises(RequestError, match="prompt"):
        llm.generate(form, GREEDY)
    settled(llm)


def test_requests_and_samples_of_a_seeded_engine_have_seeds_of_their_own() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=2, n=3)
    with LLM(str(apparatus.target()), seed=7) as seeded:
        answers = seeded.generate(["a", "a", "a"], params)
    seeds = [output.seed for answer in answers for output in answer.outputs]
    assert len(set(seeds)) == 9
    for answer in answers:
        own = [output.seed for output in answer.outputs]
        assert own == [derive(own[0], index) for index in range(3)]
    with LLM(str(apparatus.target()), seed=7) as again:
        repeated = again.generate(["a", "a", "a"], params)
    assert [o.token_ids for a in repeated for o in a.outputs] == [
        o.token_ids for a in answers for o in a.outputs
    ]


def test_the_receipt_names_the_weights_that_were_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in apparatus.target().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with LLM(str(folder)) as loaded:
        before = loaded.generate("abc", GREEDY)[0].outputs[0]
        (folder / "model.safetensors").unlink()
        after = loaded.generate("abc", GREEDY)[0].outputs[0]
    assert after.receipt["model"] == before.receipt["model"]
    assert after.token_ids == before.token_ids


def test_the_receipt_says_what_the_tokens_depend_on(llm: LLM) -> None:
    receipt = llm.generate("abc", GREEDY)[0].outputs[0].receipt
    assert receipt["build"]["torch"]
    assert receipt["build"]["cpu_capability"]
    assert receipt["model"]["eos_ids"] == [apparatus.ENDOFTEXT]
    assert receipt["model"]["vocab_size"] == apparatus.NUM_TOKENS


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_config": {"method": "nosuch"}},
        {"speculative_config": {"method": "ngram", "tree": "nosuch"}},
        {"speculative_config": {"method": "ngram", "nosuch": 1}},
        {"speculative_config": {"method": "none", "model": "x"}},
        {"speculative_config": {"method": "model"}},
        {"kv_store": "nosuch"},
        {"backend": "nosuch"},
        {"numerics": "nosuch"},
        {"seed": -1},
        {"seed": "x"},
        {"enable_prefix_caching": "no"},
        {"kv_cache_memory": "4GiB"},
        {"threads": 0},
    ],
    ids=repr,
)
def test_bad_options_are_refused_before_a_file_is_opened(options) -> None:
    with pytest.raises(ConfigError):
        LLM("/nonexistent/model", **options)
