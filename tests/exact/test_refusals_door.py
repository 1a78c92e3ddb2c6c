"""Odd requests at the door: refused by name, or served; never the end of somebody else's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import prompt, rig

from foreword.chat._json_call import JsonCall, dumps
from foreword.errors import RequestError
from foreword.params import SamplingParams
from foreword.sample.frequency import Frequency
from foreword.types import Handling


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty", "repetition_penalty"])
def test_more_distinct_tokens_than_a_table_begins_with(penalty: str) -> None:
    """200 tokens, nearly all of them different, under a penalty; drafted and plain."""
    target = rig()
    params = SamplingParams(
        temperature=2.0, seed=1, max_tokens=200, ignore_eos=True, logprobs=1, **{penalty: 1.5}
    )
    ids = [list(prompt(5))]
    answers = [
        target.door(target.engine(**setting)).generate(ids, params)[0].outputs[0]
        for setting in ({"batch": 1}, {"method": "suffix", "tree": "best_first"})
    ]
    assert answers[0].error is None
    assert len(set(answers[0].token_ids)) > 128
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].logprobs == answers[1].logprobs


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"sampler": "nonsense"}, "sampler"),
        ({"sampler": "arithmetic", "acceptance": "typical"}, "acceptance"),
        ({"arithmetic_code": 0.5}, "arithmetic_code"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop": [5]}, "stop"),
        ({"dry_sequence_breakers": (5,)}, "dry_sequence_breakers"),
        ({"bad_words": [5]}, "bad_words"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**fields)
    assert caught.value.parameter == name


def test_none_is_a_field_not_given() -> None:
    """As JSON's null: the default, for every field."""
    names = SamplingParams.__dataclass_fields__
    nothing = {name: None for name in names if name != "max_tokens"}  # there it is no limit
    assert SamplingParams(**nothing) == SamplingParams()  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [469, 10**8, 2**70])
def test_stop_ids_outside_the_vocabulary_are_refused(token: int) -> None:
    target = rig()
    llm = target.door(target.engine())
    params = SamplingParams(
        stop_token_ids=[token + target.vocab_size], structured_outputs={"choice": ["a"]}
    )
    with pytest.raises(RequestError, match="stop_token_ids holds id"):
        llm.generate([list(prompt(4))], params)


@pytest.mark.parametrize(
    "fields", [{"priority": "x"}, {"deadline": "x"}, {"draft_limit": 1.5}, {"salt": None}]
)
def test_handling_is_checked_when_it_is_made(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        Handling(**fields)
    assert caught.value.parameter == next(iter(fields))


def test_a_bug_in_one_request_ends_that_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody foresaw, inside a rule of one of three."""
    target = rig()
    llm = target.door(target.engine("ngram", k=4))

    def broken(self: Any, row: np.ndarray, token: int) -> None:
        raise ZeroDivisionError("planted")

    plain = SamplingParams(temperature=0.0, max_tokens=8)
    ids = [list(prompt(6, seed)) for seed in range(3)]
    expected = llm.generate(ids, plain)
    monkeypatch.setattr(Frequency, "advance", broken)
    penalised = SamplingParams(temperature=0.0, max_tokens=8, frequency_penalty=1.0)
    results = llm.generate(ids, [plain, penalised, plain])
    assert results[1].outputs[0].finish_reason == "error"
    assert "planted" in (results[1].outputs[0].error or "")
    for place in (0, 2):
        assert results[place].outputs[0].token_ids == expected[place].outputs[0].token_ids
    assert not llm.engine.has_work


def test_calls_hold_text_that_utf8_can_hold() -> None:
    call = JsonCall(0, None)
    events = call.push('{"arguments":{"a":"\\ud800"},"name":"f"}')
    assert "".join(getattr(one, "arguments", None) or "" for one in events).encode()
    assert dumps({"a": "\ud800é"}).encode()
    for text in ('{"name":"\\ud800","arguments":{}}', '{"arguments":{"a":NaN},"name":"f"}'):
        assert JsonCall(0, None).push(text) == []
