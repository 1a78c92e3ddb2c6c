"""Beam search with the parameters that change logits: the naive loop with each beam's rules made
anew and told its tokens, on the same rows; and what holds of the outputs whatever computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import count
from test_beams import PROMPTS, Output, door, last_row, outputs, rig, settled

from foreword import LLM, BeamSearchParams
from foreword.beam.beams import Rules
from foreword.errors import RequestError
from foreword.sample import portable
from foreword.sample.rules import rules_of
from foreword.sample.user import begin as user_of

CALLS: list[tuple[int, ...]] = []


def upwards(ids: list[int], row: np.ndarray) -> np.ndarray:
    """Ids below the last one are less likely: a function of the tokens so far."""
    CALLS.append(tuple(ids))
    row[: ids[-1]] -= 4.0
    return row


WAYS: dict[str, dict[str, Any]] = {
    "min_tokens": {"min_tokens": 4},
    "stop ids and min_tokens": {"min_tokens": 3, "stop_token_ids": [42, 160], "ignore_eos": True},
    "allowed": {"allowed_token_ids": list(range(0, 470, 3))},
    "bad words": {"bad_words": ["<t348>", "B", "<t404><t450>"]},
    "bias": {"logit_bias": {8: 3.0, 42: -100.0, 348: 1.5}},
    "penalties": {
        "repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.7,
    },
    "processor": {"logits_processors": [upwards]},
    "all": {
        "min_tokens": 2, "bad_words": ["B"], "logit_bias": {8: 2.0}, "repetition_penalty": 0.8,
        "presence_penalty": -0.5, "logits_processors": [upwards],
        "allowed_token_ids": list(range(0, 470, 2)),
    },
}  # fmt: skip


def naive(llm: LLM, ids: tuple[int, ...], params: BeamSearchParams) -> list[Output]:
    """As in test_beams.py, over rows as the rules leave them."""
    request = llm.asks.beam(list(ids), params, 0)
    ends = request.eos_ids | frozenset(params.stop_token_ids or ())
    limits = Rules(params.beam_width, request.max_tokens, ends, params.length_penalty)
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    complete: list[tuple[float, int, tuple[int, ...], float]] = []
    for length in range(1, request.max_tokens + 1):
        ways = []
        for place, (tokens, total) in enumerate(beams):
            raw = last_row(rig("torch").model, (*ids, *tokens))
            peak = float(raw.max())
            sums = portable.block_sum(portable.exp(raw.astype(np.float64) - peak))
            scale = float(portable.log(np.array([sums]))[0])
            row, rules, user = raw.copy(), rules_of(request), user_of(request)
            for token in tokens:
                for rule in rules:
                    rule.advance(raw, token)
                if user is not None:
                    user.advance(token)
            if user is not None:
                row = user.answer(row, len(tokens))
            for rule in rules:
                rule.apply(row, len(tokens))
            for token in np.flatnonzero(row > -np.inf).tolist():
                ways.append((total + ((float(row[token]) - peak) - scale), place, token, tokens))
        ways.sort(key=lambda way: (-way[0], way[1], way[2]))
        beams = []
        for rank, (total, _, token, tokens) in enumerate(ways):
            over = token in ends or length == request.max_tokens
            if over and rank < params.beam_width:
                value = limits.normalised(total, length)
                complete.append((value, len(complete), (*tokens, token), total))
            if not over and len(beams) < params.beam_width:
                beams.append(((*tokens, token), total))
        complete.sort(key=lambda one: (-one[0], one[1]))
        if beams and len(complete) >= params.beam_width:
            hope = limits.normalised(beams[0][1], request.max_tokens)
            if hope <= complete[params.beam_width - 1][0]:
                break
    return [
        (tokens, total.hex(), value.hex(), "stop" if tokens[-1] in ends else "length")
        for value, _, tokens, total in complete[: params.beam_width]
    ]


@pytest.mark.parametrize("name", WAYS)
def test_rules_follow_each_beam(name: str) -> None:
    llm = door(rig("torch"))
    common = {"beam_width": 4, "max_tokens": 6, "early_stopping": "never"}
    params = BeamSearchParams(**common, **WAYS[name])
    CALLS.clear()
    answers = llm.beam_search(PROMPTS[:2], params)
    calls = list(CALLS)
    found = [outputs(answer) for answer in answers]
    assert found == [naive(llm, ids, params) for ids in PROMPTS[:2]], name
    if "logits_processors" in WAYS[name]:
        assert len(calls) == len(set(calls)), "a processor was called twice for one beam"
    plain = llm.beam_search(PROMPTS[:2], BeamSearchParams(**common))
    assert found != [outputs(answer) for answer in plain], "the parameters had no effect"
    settled(llm)


def test_masked_ids_never_come() -> None:
    llm = door(rig("torch"))
    params = BeamSearchParams(
        8,
        max_tokens=5,
        min_tokens=5,
        allowed_token_ids=list(range(0, 470, 4)),
        bad_words=["<t404>"],
    )
    for one in llm.beam_search(PROMPTS[0], params)[0].sequences:
        assert len(one.token_ids) == 5
        assert all(token % 4 == 0 and token != 404 for token in one.token_ids)
        assert not any(token % 8 == 0 for token in one.token_ids[:-1])  # end tokens
        count(1, 5)


@pytest.mark.parametrize("fields", [{"allowed_token_ids": [500]}, {"logit_bias": {470: 1.0}}])
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, Any]) -> None:
    llm = door(rig("torch"))
    with pytest.raises(RequestError, match=next(iter(fields))):
        llm.beam_search(PROMPTS[0], BeamSearchParams(2, **fields))
    settled(llm)
