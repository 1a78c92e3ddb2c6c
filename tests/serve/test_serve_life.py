"""Clients that leave, requests that fail, an engine that stops, and a server that ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from serving_rig import PATIENCE, Served, events_of, open_llm, serving, strict, wait_until

import apparatus
from foreword import LLM, SamplingParams
from foreword.errors import NonFiniteLogits

LONG = {"prompt": "abc", "max_tokens": 2000, "ignore_eos": True, "temperature": 1, "seed": 1}


def idle(server: Served) -> bool:
    parts = server.llm.engine.parts
    return not (
        server.desk.open
        or server.desk.worker.num_open
        or parts.scheduler.has_work
        or parts.kv.usage
    )


@contextmanager
def started(server: Served, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """A stream whose first event has come."""
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json={**body, "stream": True}, timeout=PATIENCE) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def test_a_client_that_leaves_frees_what_it_held(server: Served):
    """In the middle of a stream, several samples at once; and while it waits for a whole answer."""
    with started(server, {**LONG, "n": 3}):
        assert server.llm.engine.parts.kv.usage > 0
        assert server.desk.open == 1
    wait_until(lambda: idle(server))
    body = {**LONG, "n": 3}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=httpx.Timeout(5, read=0.3))
    wait_until(lambda: idle(server))
    server.llm.engine.parts.kv.check()
    assert server.answer("completions", {"prompt": "x", "max_tokens": 2})["choices"]


def test_a_request_that_fails_leaves_the_others_as_they_are(
    server: Served, alone: LLM, monkeypatch: pytest.MonkeyPatch
):
    """Seed 13 meets NaN at its fourth token: an error event in the stream, a 500 for a whole one;
    what runs beside it keeps its text."""
    sampler = server.llm.engine.parts.sampler
    choose = sampler.choose

    def failing(row: Any, params: SamplingParams, state: Any, position: int, *more: Any) -> Any:
        if params.seed == 13 and position == 3:
            raise NonFiniteLogits("the logits hold NaN")
        return choose(row, params, state, position, *more)

    monkeypatch.setattr(sampler, "choose", failing)
    body = {**LONG, "max_tokens": 60}
    expected = {
        seed: alone.generate(
            "abc", SamplingParams(temperature=1, seed=seed, max_tokens=60, ignore_eos=True)
        )[0].outputs[0].text
        for seed in range(4)
    }  # fmt: skip

    def text(seed: int) -> str:
        return str(server.answer("completions", {**body, "seed": seed})["choices"][0]["text"])

    with ThreadPoolExecutor(5) as pool:
        others = [pool.submit(text, seed) for seed in expected]
        streamed = server.stream("completions", {**body, "seed": 13})
        assert [other.result() for other in others] == [*expected.values()]
    error = streamed.pop()["error"]
    assert (error["type"], error["message"]) == ("server_error", "the logits hold NaN")
    assert 1 <= len(streamed) <= 3
    whole = server.post("completions", {**body, "seed": 13, "n": 2})
    assert (whole.status_code, strict(whole.text)["error"]["type"]) == (500, "server_error")
    wait_until(lambda: idle(server))


def test_an_engine_that_stops_says_so_to_everyone(monkeypatch: pytest.MonkeyPatch):
    with open_llm() as llm, serving(llm) as server:
        with started(server, LONG) as lines:
            monkeypatch.setattr(llm.engine, "step", lambda: 1 / 0)
            rest = [line for line in lines if line]
        assert rest.pop() == "data: [DONE]"
        error = strict(rest.pop().removeprefix("data: "))["error"]
        assert error["type"] == "server_error"
        assert "ZeroDivisionError" in error["message"]
        late = server.post("completions", LONG)
        assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
        health = httpx.get(f"{server.url}/health", timeout=PATIENCE)
        assert (health.status_code, health.json()) == (503, {"status": "failed"})


@contextmanager
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`foreword serve` on the tiny checkpoint, and its address."""
    path = str(apparatus.target(max_position=2048))
    words = ["serve", path, "--port", "0", "--threads", "1", "--served-model-name", "tiny"]
    command = [sys.executable, "-m", "foreword", *words]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stderr is not None
        said = ""
        while not (found := re.search(r"serving tiny at (http://\S+)/v1", said)):
            said = running.stderr.readline()
            assert said, "it ended before it served"
        url = found[1]
        wait_until(lambda: answers(url))
        yield running, url
    finally:
        running.kill()
        running.wait()
        running.stderr.close()


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=PATIENCE).status_code == 200
    except httpx.ConnectError:
        return False


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGTERM there")
def test_sigterm_lets_running_requests_finish_and_takes_no_new_ones(alone: LLM):
    """The stream that runs is complete, its text plain decoding's; then the process ends well."""
    params = SamplingParams(temperature=1, seed=1, max_tokens=2000, ignore_eos=True)
    expected = alone.generate("abc", params)[0].outputs[0].text
    with process() as (running, url):
        body = {**LONG, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            first = next(lines)
            running.send_signal(signal.SIGTERM)
            late: list[httpx.Response] = []

            def refused() -> bool:
                late.append(
                    httpx.post(
                        f"{url}/v1/completions",
                        json={"prompt": "x", "max_tokens": 1},
                        timeout=PATIENCE,
                    )
                )
                return late[-1].status_code != 200

            wait_until(refused)
            assert (late[-1].status_code, late[-1].headers["Retry-After"]) == (503, "1")
            health = httpx.get(f"{url}/health", timeout=PATIENCE)
            assert (health.status_code, health.json()) == (503, {"status": "draining"})
            rest = "\n".join([first, *lines]) + "\n"
        events = events_of(rest)
        assert "".join(event["choices"][0]["text"] for event in events) == expected
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert running.wait(PATIENCE) == 0


def test_a_drain_that_takes_too_long_ends_with_an_error():
    with open_llm() as llm, serving(llm, drain_seconds=0) as server:
        with started(server, {**LONG, "n": 16}) as lines:
            server.uvicorn.drain()
            rest = [line for line in lines if line]
        assert rest.pop() == "data: [DONE]"
        error = strict(rest.pop().removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", "service_unavailable")
        wait_until(lambda: idle(server))
