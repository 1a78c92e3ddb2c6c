"""A body's wishes for how it is served, through the door: honoured, and never in the text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

import apparatus
from foreword import LLM
from foreword.serve.admit import admit_completion
from foreword.serve.convert import Served, completion_job

SERVED = Served({"tiny": None}, drafters=frozenset({"none", "ngram"}))
PROMPT = "abcabcabcabcabc"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    config = {"method": "ngram", "num_speculative_tokens": 6}
    with LLM(str(apparatus.target()), threads=1, speculative_config=config) as llm:
        yield llm


def answer(llm: LLM, **body: Any) -> Any:
    request = admit_completion({"prompt": PROMPT, "temperature": 0, "max_tokens": 60, **body})
    job = completion_job(request, SERVED)
    handling = job.handling(time.monotonic())
    (result,) = llm.generate(list(job.prompts), job.params, handling=handling)
    return result.outputs[0]


def drafted(output: Any) -> int:
    return int(output.metrics["speculative_decoding"]["num_draft_tokens"])


def test_a_request_may_say_how_it_is_drafted(llm: LLM):
    """Off, few, many: other counts, the same ids."""
    free = answer(llm)
    assert drafted(free) > 0
    ids = {tuple(free.token_ids)}
    for wish in ({"enabled": False}, {"method": "none"}, {"num_speculative_tokens": 0}):
        plain = answer(llm, speculative=wish)
        assert drafted(plain) == 0
        ids.add(tuple(plain.token_ids))
    one = answer(llm, speculative={"method": "ngram", "num_speculative_tokens": 1})
    figures = one.metrics["speculative_decoding"]
    assert 0 < figures["num_draft_tokens"] <= figures["num_spec_steps"]
    ids.add(tuple(one.token_ids))
    assert len(ids) == 1


def test_salt_priority_and_deadline_reach_the_engine(llm: LLM, monkeypatch: pytest.MonkeyPatch):
    seen = []
    add = llm.engine.add
    monkeypatch.setattr(llm.engine, "add", lambda request: seen.append(request) or add(request))
    free = answer(llm)
    asked = answer(llm, cache_salt="mine", priority=-2, deadline_ms=60_000)
    assert asked.token_ids == free.token_ids
    plain, request = seen
    assert (plain.salt, plain.priority, plain.deadline) == ("", 0, None)
    assert (request.salt, request.priority) == ("mine", -2)
    assert 0 < request.deadline - time.monotonic() <= 60


def test_a_salt_keeps_the_prefix_cache_apart(llm: LLM):
    kv = llm.engine.parts.kv
    prompt = "a prompt of several whole pages, long enough to be kept and found again"

    def found(**body: Any) -> int:
        before = kv.prefix_hits
        answer(llm, prompt=prompt, max_tokens=2, **body)
        return kv.prefix_hits - before

    assert found() == 0
    shared = found()
    assert shared >= 32
    assert found(cache_salt="mine") == 0
    assert found(cache_salt="mine") == shared
    assert found(cache_salt="yours") == 0
