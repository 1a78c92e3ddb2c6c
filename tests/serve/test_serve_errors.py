"""Errors before the first byte, in OpenAI's shape and naming the field; and who may come in."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from serving_rig import PATIENCE, Served, open_llm, serving, strict

CHAT = [{"role": "user", "content": "x"}]
MANY = [[1]] * 600

COMPLETIONS: list[tuple[dict[str, Any], str, str]] = [
    ({}, "prompt", "required"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "empty"),
    ({"prompt": [999]}, "prompt", "999"),
    ({"prompt": [1] * 3000}, "prompt", "context"),
    ({"prompt": "x", "temprature": 1}, "temprature", "temperature"),
    ({"prompt": "x", "temperature": "hot"}, "temperature", "number"),
    ({"prompt": "x", "top_p": 0}, "top_p", "top_p"),
    ({"prompt": "x", "n": 0}, "n", "n"),
    ({"prompt": MANY, "n": 2}, "n", "1200"),
    ({"prompt": "x", "seed": -1}, "seed", "seed"),
    ({"prompt": "x", "stop": ""}, "stop", "stop"),
    ({"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
    ({"prompt": "x", "stream": True, "best_of": 2}, "best_of", "stream"),
    ({"prompt": "x", "prompt_logprobs": 1}, "prompt_logprobs", "echo"),
    ({"prompt": "x", "prompt_logprobs": 1, "echo": True}, "prompt_logprobs", "echo"),
    ({"prompt": "x", "guided_regex": "("}, "guided_regex", "regex"),
    ({"prompt": "x", "speculative": {"method": "crystal"}}, "speculative.method", "crystal"),
    ({"prompt": "\ud800"}, "prompt", "surrogate"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("body", "parameter", "word"), COMPLETIONS, ids=[str(body)[:40] for body, _, _ in COMPLETIONS]
)
def test_a_bad_completion_is_a_400(
    server: Served, body: dict[str, Any], parameter: str, word: str, stream: bool
):
    content = {**body, "stream": True} if stream else body
    error = refused(server.post("completions", content), 400)
    if parameter == "guided_regex":
        assert error["param"].startswith(("guided_regex", "structured_outputs"))
    else:
        assert error["param"] == parameter
    assert word in error["message"]


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": CHAT, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": CHAT, "reasoning_effort": "high"}, "reasoning_effort"),
        ({"messages": CHAT, "audio": {}}, "audio"),
        ({"messages": CHAT, "prompt": "x"}, "prompt"),
    ],
)
def test_a_bad_chat_is_a_400(server: Served, body: dict[str, Any], parameter: str):
    assert refused(server.post("chat/completions", body), 400)["param"] == parameter


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1]", b'"x"', b"null", b'{"prompt": NaN}', b"\xff\xfe{}", b"[" * 100_000,
     b'{"prompt": ' + b'{"a":' * 900 + b"1" + b"}" * 901],
)  # fmt: skip
def test_what_is_no_request_is_a_400(server: Served, content: bytes):
    for path in ("completions", "chat/completions"):
        answer = httpx.post(f"{server.url}/v1/{path}", content=content, timeout=PATIENCE)
        refused(answer, 400)


def test_other_refusals(server: Served):
    bad = refused(server.post("completions", {"prompt": "x", "stream_options": {}}), 400)
    assert bad["param"] == "stream_options"
    refused(server.post("completions", {"prompt": "x", "model": "other"}), 404)
    refused(server.post("nothing", {}), 404)
    refused(httpx.get(f"{server.url}/v1/completions", timeout=PATIENCE), 405)
    assert server.desk.open == 0
    assert server.answer("completions", {"prompt": "x", "max_tokens": 2})["choices"]


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    content = strict(answer.text)
    assert set(content) == {"error"}
    assert set(content["error"]) == {"message", "type", "param", "code"}
    assert content["error"]["type"] == "invalid_request_error"
    assert content["error"]["message"]
    return dict(content["error"])


def test_keys_and_the_size_of_bodies():
    with open_llm() as llm, serving(llm, api_keys=["one", "zwei-ü"], max_body_bytes=1000) as server:
        body = {"prompt": "x", "max_tokens": 2}
        for given in (None, "Bearer", "Bearer no", "Bearer on", "Basic one", "one", "Bearer one x"):
            headers = {} if given is None else {"Authorization": given}
            answer = server.post("completions", body, headers=headers)
            assert refused(answer, 401)["code"] == "invalid_api_key"
            for path in ("/v1/models", "/version", "/nothing"):
                answer = httpx.get(server.url + path, headers=headers, timeout=PATIENCE)
                refused(answer, 401)
        assert httpx.get(f"{server.url}/health", timeout=PATIENCE).json() == {"status": "ok"}
        for key in ("one", "zwei-ü"):
            headers = {"Authorization": f"Bearer {key}".encode()}
            assert server.post("completions", body, headers=headers).status_code == 200
        large = {**body, "user": "x" * 1000}
        headers = {"Authorization": "Bearer one"}
        assert "1000" in refused(server.post("completions", large, headers=headers), 413)["message"]

        def pieces() -> Any:  # without a length
            for _ in range(11):
                yield b" " * 100

        url = f"{server.url}/v1/completions"
        answer = httpx.post(url, content=pieces(), headers=headers, timeout=PATIENCE)
        refused(answer, 413)
