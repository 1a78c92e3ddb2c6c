"""Streamed, whole, in company or alone: the text of a request is the library's plain text."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving_rig import Served

from foreword import LLM, SamplingParams

PROMPT = "The cat sat on the mat. The cat sat on"
GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
SAMPLED = {"temperature": 1, "seed": 7, "max_tokens": 40, "ignore_eos": True}
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi there"}]


def params(body: dict[str, Any]) -> SamplingParams:
    return SamplingParams(**body)


@pytest.mark.parametrize(
    "body",
    [
        GREEDY,
        SAMPLED,
        {**SAMPLED, "n": 3},
        {**SAMPLED, "stop": ["<t", "e"], "max_tokens": 80},
        {**SAMPLED, "logprobs": 2, "repetition_penalty": 1.2},
        {**SAMPLED, "structured_outputs": {"regex": "[a-f]{5,20}"}},
    ],
)
def test_a_completion_is_the_same_text_everywhere(server: Served, alone: LLM, body: dict[str, Any]):
    (expected,) = alone.generate(PROMPT, params(body))
    asked = {"prompt": PROMPT, "return_token_ids": True, **body}
    whole = server.answer("completions", asked)
    streamed = server.stream("completions", {**asked, "stream_options": {"include_usage": True}})
    last = streamed.pop()
    assert [choice["index"] for choice in whole["choices"]] == [*range(body.get("n", 1))]
    for choice, output in zip(whole["choices"], expected.outputs, strict=True):
        mine = [
            part
            for event in streamed
            for part in event["choices"]
            if part["index"] == choice["index"]
        ]
        assert choice["text"] == output.text == "".join(part["text"] for part in mine)
        assert choice["token_ids"] == output.token_ids
        assert output.token_ids == [token for part in mine for token in part["token_ids"]]
        assert choice["finish_reason"] == output.finish_reason == mine[-1]["finish_reason"]
        assert choice.get("stop_reason") == output.stop_reason == mine[-1].get("stop_reason")
        assert choice["seed"] == mine[-1]["seed"] == output.seed or "seed" not in body
        assert [part["finish_reason"] for part in mine[:-1]] == [None] * (len(mine) - 1)
        if "logprobs" in body:
            joined = {name: [] for name in choice["logprobs"]}
            for part in mine:
                for name, values in part["logprobs"].items():
                    joined[name] += values
            assert joined == choice["logprobs"]
            rows = zip(output.token_ids, output.logprobs, strict=True)
            assert joined["token_logprobs"] == [row[token].logprob for token, row in rows]
    assert last["usage"] == whole["usage"]
    made = sum(len(output.token_ids) for output in expected.outputs)
    assert (last["usage"]["prompt_tokens"], last["usage"]["completion_tokens"]) == (
        len(expected.prompt_token_ids),
        made,
    )
    assert last["choices"] == []
    assert last["system_fingerprint"] == whole["system_fingerprint"]


def test_figures_and_receipt_come_with_whole_and_streamed_answers(server: Served, alone: LLM):
    """The receipt's hash of the tokens is that of plain decoding. Without usage the last event of
    the choice carries them, and nothing else does."""
    (expected,) = alone.generate(PROMPT, params(SAMPLED))
    theirs = expected.outputs[0].receipt
    whole = server.answer("completions", {"prompt": PROMPT, **SAMPLED})
    streamed = server.stream("completions", {"prompt": PROMPT, **SAMPLED})
    assert all("foreword" not in event and "metrics" not in event for event in streamed[:-1])
    for answer in (whole, streamed[-1]):
        receipt = answer["foreword"]["receipt"]
        for name in ("tokens_sha256", "prompt_sha256", "seed", "numerics", "machine", "sampling"):
            assert receipt[name] == theirs[name], name
        figures = answer["metrics"]["speculative_decoding"]
        histogram = figures["acceptance_histogram"]
        assert sum(histogram.values()) == figures["num_spec_steps"]
        assert (
            sum(int(n) * count for n, count in histogram.items())
            == (figures["num_accepted_draft_tokens"])
        )
        assert figures["num_spec_steps"] + figures["num_accepted_draft_tokens"] == 40
        assert answer["system_fingerprint"].startswith("fw-")
    assert whole["foreword"] == streamed[-1]["foreword"]


def test_prompts_of_a_list_keep_their_order(server: Served, alone: LLM):
    prompts = ["abc", "The cat", "xyzxyz"]
    results = alone.generate(prompts, params({**SAMPLED, "n": 2}))
    texts = [output.text for result in results for output in result.outputs]
    ids = [result.prompt_token_ids for result in results]
    for listed in (prompts, ids):
        body = {"prompt": listed, **SAMPLED, "n": 2}
        whole = server.answer("completions", body)
        assert [choice["text"] for choice in whole["choices"]] == texts
        assert [choice["index"] for choice in whole["choices"]] == [*range(6)]
        joined = [""] * 6
        for event in server.stream("completions", body):
            for choice in event["choices"]:
                joined[choice["index"]] += choice["text"]
        assert joined == texts
    (one,) = alone.generate([ids[0]], params(SAMPLED))
    body = {"prompt": ids[0], **SAMPLED}
    assert server.answer("completions", body)["choices"][0]["text"] == one.outputs[0].text


@pytest.mark.parametrize("more", [{"max_tokens": 6, "n": 2}, {"max_tokens": 0}])
def test_an_echo_is_the_same_streamed_and_whole(server: Served, more: dict[str, Any]):
    body = {"prompt": ["abcabc", "xyz"], "echo": True, "logprobs": 1, **SAMPLED, **more}
    whole = server.answer("completions", body)
    events = server.stream("completions", body)
    assert whole["choices"][0]["text"].startswith("abcabc")
    for choice in whole["choices"]:
        mine = [p for event in events for p in event["choices"] if p["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert values == [v for part in mine for v in (part["logprobs"] or {name: []})[name]]
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert None not in choice["logprobs"]["token_logprobs"][1:]


@pytest.mark.parametrize("body", [GREEDY, SAMPLED, {**SAMPLED, "n": 2}])
def test_a_chat_is_the_same_text_everywhere(server: Served, alone: LLM, body: dict[str, Any]):
    (expected,) = alone.chat(CHAT, params(body))
    asked = {"messages": CHAT, "logprobs": True, "top_logprobs": 2, **body}
    whole = server.answer("chat/completions", asked)
    events = server.stream("chat/completions", asked)
    for choice, output in zip(whole["choices"], expected.outputs, strict=True):
        mine = [p for event in events for p in event["choices"] if p["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(part["delta"].get("content", "") for part in mine)
        assert choice["message"]["content"] == output.text == text
        assert choice["finish_reason"] == output.finish_reason == mine[-1]["finish_reason"]
        entries = [e for part in mine for e in (part["logprobs"] or {"content": []})["content"]]
        assert entries == choice["logprobs"]["content"]
        assert len(entries) == len(output.token_ids)
    assert whole["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)


def test_parallel_clients_get_what_they_would_get_alone(server: Served, alone: LLM):
    """24 requests by 8 clients at once, streamed and whole, of both endpoints."""
    bodies = [
        {"prompt": f"{PROMPT} {seed % 5}", "temperature": seed % 3, "seed": seed, "max_tokens": 30}
        for seed in range(24)
    ]
    expected = [
        alone.generate(
            body["prompt"],
            SamplingParams(temperature=body["temperature"], seed=body["seed"], max_tokens=30),
        )[0].outputs[0].text
        for body in bodies
    ]  # fmt: skip

    def ask(body: dict[str, Any]) -> str:
        if body["seed"] % 2:
            return str(server.answer("completions", body)["choices"][0]["text"])
        events = server.stream("completions", body)
        return "".join(event["choices"][0]["text"] for event in events)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, bodies)) == expected
