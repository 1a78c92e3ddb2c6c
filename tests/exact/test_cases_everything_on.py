"""V39 and V40 with everything on at once: penalties, a compiled form, an adapter, speculation."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
from test_mixed_adapters import model_path, named

from foreword.llm import LLM
from foreword.outputs import RequestOutput
from foreword.params import MAX_LOGPROBS, SamplingParams

FORM = {"regex": "[a-h ]{40,60}"}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}
PROMPT = "abc abd abe"


@cache
def engine(method: str) -> LLM:
    return LLM(
        str(model_path()),
        numerics="float32",
        speculative_config={"method": method, "node_budget": 12}
        if method != "none"
        else {"method": method},
        adapters=named(),
        enable_prefix_caching=method != "none",
        threads=1,
        kv_cache_memory=32 << 20,
    )


def ask(method: str, adapter: str | None, **more: Any) -> RequestOutput:
    given = {"temperature": 0.9, "seed": 3, "max_tokens": 32, "logprobs": MAX_LOGPROBS}
    params = SamplingParams(structured_outputs=FORM, **{**given, **PENALTIES, **more})
    return engine(method).generate(PROMPT, params, adapter=adapter)[0]


def bits(result: RequestOutput) -> list[tuple[int, list[tuple[int, str]]]]:
    (output,) = result.outputs
    assert output.logprobs is not None
    return [
        (token, sorted((one, entry.logprob.hex()) for one, entry in table.items()))
        for token, table in zip(output.token_ids, output.logprobs, strict=True)
    ]


@pytest.mark.parametrize("adapter", ["red", None])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_v39_v40_logprobs_with_penalties_a_form_and_an_adapter(
    mode: str, adapter: str | None
) -> None:
    """V39: the bits of plain decoding. V40: raw ones are those that scoring the finished text as a
    prompt gives, which knows no parameter; processed ones rule out what the form does, and are a
    distribution over what is left."""
    plain = ask("none", adapter, logprobs_mode=mode)
    for method in ("auto", "suffix"):
        assert bits(ask(method, adapter, logprobs_mode=mode)) == bits(plain)
    (output,) = plain.outputs
    assert set(output.text) <= set("abcdefgh ")
    assert output.logprobs is not None
    chosen = [
        table[token].logprob for token, table in zip(output.token_ids, output.logprobs, strict=True)
    ]
    if mode == "processed":
        for table in output.logprobs:
            total = sum(math.exp(entry.logprob) for entry in table.values())
            assert total <= 1.0 + 1e-9
            assert len(table) <= MAX_LOGPROBS + 1
        return
    ids = [*plain.prompt_token_ids, *output.token_ids]
    score = SamplingParams(max_tokens=0, prompt_logprobs=0)
    (scored,) = engine("none").generate([ids], score, adapter=adapter)
    assert scored.prompt_logprobs is not None
    rows = scored.prompt_logprobs[len(plain.prompt_token_ids) :]
    again = [row[token].logprob for token, row in zip(output.token_ids, rows, strict=True) if row]
    assert [value.hex() for value in again] == [value.hex() for value in chosen]


def test_v40_penalties_move_processed_logprobs_and_not_raw_ones() -> None:
    """V40: of the first token, whose raw row both runs share."""
    for mode, same in (("raw", True), ("processed", False)):
        biased, free = (
            ask("auto", None, logprobs_mode=mode, temperature=0.0, **more).outputs[0]
            for more in ({"logit_bias": {97: 1.0}}, {})
        )
        assert biased.logprobs is not None
        assert free.logprobs is not None
        first = biased.logprobs[0], free.logprobs[0]
        shared = set(first[0]) & set(first[1])
        assert shared
        moved = [first[0][one].logprob != first[1][one].logprob for one in shared]
        assert any(moved) != same
