"""Processors as a user meets them: texts become ids, errors name the field, receipts replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apparatus
from foreword import LLM, SamplingParams
from foreword.audit.replay import read_records, replay
from foreword.cli.as_json import output_json
from foreword.errors import RequestError
from foreword.text.words import bad_word_ids, breaker_ids

PROMPT = "one two one two"


@pytest.fixture(scope="module")
def path() -> str:
    return str(apparatus.target())


@pytest.fixture(scope="module")
def llm(path: str) -> LLM:
    return LLM(path, max_num_seqs=4, threads=1, speculative_config={"method": "suffix"})


def failing(ids: list[int], row: np.ndarray) -> np.ndarray:
    if len(ids) > len(PROMPT) + 4:
        raise ValueError("enough")
    return row


def test_bad_words_have_a_variant_with_a_space(llm: LLM) -> None:
    tokenizer = llm.tokenizer
    assert bad_word_ids(tokenizer, ["ab", " ab", "ab"]) == ((97, 98), (32, 97, 98))
    (free,) = llm.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=12))
    shown = free.outputs[0].token_ids
    words = [tokenizer.decode([token], skip_special_tokens=False) for token in set(shown)]
    bad = [word for word in words if word.strip() and "\ufffd" not in word]
    masked = {ids[0] for ids in bad_word_ids(tokenizer, bad) if len(ids) == 1}
    assert masked & set(shown)
    params = SamplingParams(temperature=0.0, max_tokens=12, bad_words=bad)
    (other,) = llm.generate(PROMPT, params)
    assert not masked & set(other.outputs[0].token_ids)


def test_breakers_are_the_ids_whose_text_holds_one(llm: LLM) -> None:
    assert breaker_ids(llm.tokenizer, ["\n", "<t300>"]) == {10, 300}
    assert breaker_ids(llm.tokenizer, ["ab"]) == {98}  # longer than any token's text: its last id
    assert breaker_ids(llm.tokenizer, ["t30"]) == set(range(300, 310))
    assert breaker_ids(llm.tokenizer, []) == frozenset()


def test_a_broken_processor_ends_its_request_and_no_other(llm: LLM) -> None:
    well = SamplingParams(temperature=0.0, max_tokens=12)
    ill = SamplingParams(temperature=0.0, max_tokens=12, logits_processors=[failing])
    first, broken, last = llm.generate([PROMPT] * 3, [well, ill, well])
    (out,) = broken.outputs
    assert out.finish_reason == "error"
    assert "test_processors_door.failing" in (out.error or "")
    assert "ValueError: enough" in (out.error or "")
    alone = llm.generate(PROMPT, well)[0].outputs[0]
    assert first.outputs[0].token_ids == last.outputs[0].token_ids == alone.token_ids
    assert out.token_ids == alone.token_ids[:5]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logit_bias": {470: 1.0}}, "logit_bias"),
        ({"allowed_token_ids": [3, 10**9]}, "allowed_token_ids"),
        ({"min_tokens": 120, "max_tokens": None}, "min_tokens"),
        ({"allowed_token_ids": [256], "min_tokens": 1}, "allowed_token_ids"),
        ({"bad_words": ["a\ud800"]}, "bad_words"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(
    llm: LLM, fields: dict[str, Any], name: str
) -> None:
    with pytest.raises(RequestError, match=name):
        llm.generate([PROMPT, PROMPT], [SamplingParams(max_tokens=4), SamplingParams(**fields)])
    assert not llm.engine.has_work


def test_receipts_hold_every_processor_and_replay(llm: LLM, path: str, tmp_path: Path) -> None:
    """Sampled with drafts, replayed plain, after a journey through JSON."""
    every = [
        {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"logit_bias": {5: 2.0, 300: -1.5}, "bad_words": ["<t301>", "ab"], "min_tokens": 4},
        {"allowed_token_ids": range(0, 400, 3), "dry_multiplier": 1.0, "dry_allowed_length": 1},
        {"typical_p": 0.7, "xtc_probability": 0.5, "xtc_threshold": 0.02},
        {"mirostat_mode": 2, "mirostat_tau": 3.0},
        {"logits_processors": [lambda ids, row: row]},
    ]
    params = [SamplingParams(temperature=0.9, max_tokens=10, seed=3, **fields) for fields in every]
    results = llm.generate([PROMPT] * len(params), params)
    outputs = [output_json(number, one, one.outputs[0]) for number, one in enumerate(results)]
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"outputs": outputs}))
    *well, users = list(replay(path, read_records(file), threads=1))
    assert [one.problem for one in well] == [None] * 5
    assert "logits_processors" in (users.problem or "")
    assert "<lambda>" in (users.problem or "")
    assert len({tuple(one["token_ids"]) for one in outputs}) >= 5


def test_a_models_own_penalty_is_applied_and_shown(path: str) -> None:
    folder = apparatus.tiny_checkpoint(
        generation={"repetition_penalty": 1.5, "typical_p": 0.8, "do_sample": True}
    )
    with LLM(str(folder), threads=1) as model, LLM(path, threads=1) as other:
        params = SamplingParams(temperature=0.0, max_tokens=12)
        (mine,) = model.generate(PROMPT, params)
        asked = SamplingParams(
            temperature=0.0, max_tokens=12, repetition_penalty=1.5, typical_p=0.8
        )
        (theirs,) = other.generate(PROMPT, asked)
        (bare,) = other.generate(PROMPT, params)
    assert mine.outputs[0].token_ids == theirs.outputs[0].token_ids != bare.outputs[0].token_ids
    shown = mine.outputs[0].receipt["sampling"]
    assert (shown["repetition_penalty"], shown["typical_p"]) == (1.5, 0.8)
