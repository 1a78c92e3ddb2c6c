"""The user's own processors, and everything about processors that is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_sample_processors import GONE, SAMPLER, make_row, request

from foreword.errors import NonFiniteLogits, RequestError
from foreword.sample.checks import check_processors
from foreword.types import SamplingParams


def test_the_users_processors_run_once_a_token_in_order_on_copies() -> None:
    calls: list[tuple[str, list[int], bytes]] = []

    def first(ids: list[int], row: np.ndarray) -> np.ndarray:
        calls.append(("first", ids, row.tobytes()))
        row[:] = 0.0  # its own copy
        row[1] = 5.0
        return row

    def second(ids: list[int], row: np.ndarray) -> np.ndarray:
        calls.append(("second", ids, row.tobytes()))
        ids.append(99)
        return row.astype(np.float64) * 2

    asked = request([4, 5], logits_processors=[first, second], mirostat_mode=2, temperature=1.0)
    state = SAMPLER.begin(asked)
    row = make_row(0)
    before = row.tobytes()
    token = SAMPLER.choose(row, asked.params, state, 0).token_id
    assert SAMPLER.open_row(row, asked.params, state, 0)[1] == 10.0
    SAMPLER.rank(row, asked.params, state, 0, 3)
    SAMPLER.advance(row, state, token)
    SAMPLER.rank(row, asked.params, state, 1, 3)
    assert row.tobytes() == before
    assert [name for name, _, _ in calls] == ["first", "second"]
    assert calls[0][1:] == ([4, 5], before)
    assert np.frombuffer(calls[1][2], np.float32).tolist() == [0, 5, 0, 0, 0, 0, 0, 0]
    SAMPLER.choose(row, asked.params, state, 1)
    assert calls[2][1] == [4, 5, token]


class Broken:
    def __init__(self, result: Any) -> None:
        self.result = result

    def __call__(self, ids: list[int], row: np.ndarray) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result(row) if callable(self.result) else self.result


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (KeyError("x"), "raised KeyError"),
        (None, "returned NoneType"),
        ([0.0] * 8, "returned list"),
        (lambda row: row.astype(np.int64), "returned int64"),
        (lambda row: row[:-1], r"returned shape \(7,\)"),
        (lambda row: row[None], r"returned shape \(1, 8\)"),
        (lambda row: row + np.float32("nan"), "NaN or infinity"),
        (lambda row: row + np.float32("inf"), "NaN or infinity"),
        (lambda row: row - np.float32("inf"), "masked every id"),
    ],
)
def test_a_broken_processor_is_an_error_that_names_it(result: Any, message: str) -> None:
    asked = request(logits_processors=[Broken(result)])
    state = SAMPLER.begin(asked)
    with pytest.raises(RequestError, match=message) as error:
        SAMPLER.choose(make_row(0), asked.params, state, 0)
    assert "Broken" in str(error.value)
    assert error.value.parameter == "logits_processors"


BAD_FIELDS: list[dict[str, Any]] = [
    {"typical_p": 0.0}, {"typical_p": 1.1}, {"xtc_probability": -0.1}, {"xtc_threshold": 2},
    {"mirostat_mode": 1}, {"mirostat_mode": True}, {"mirostat_tau": 0.0, "mirostat_mode": 2},
    {"mirostat_eta": -1.0}, {"presence_penalty": 2.1}, {"frequency_penalty": "1"},
    {"dry_multiplier": -1.0}, {"dry_base": 0.5}, {"dry_allowed_length": 0},
    {"dry_penalty_last_n": -2}, {"dry_sequence_breakers": [""]}, {"logit_bias": {1: 101}},
    {"logit_bias": {"x": 1.0}}, {"logit_bias": {-1: 1.0}}, {"logit_bias": {1: None}},
    {"logit_bias": [1]}, {"allowed_token_ids": []}, {"allowed_token_ids": [1.5]},
    {"bad_words": [" "]}, {"bad_words": [3]}, {"min_tokens": -1},
    {"min_tokens": 17}, {"logits_processors": [3]}, {"repetition_penalty": 0.0},
    {"top_p": 0.9, "mirostat_mode": 2}, {"xtc_probability": 0.5, "mirostat_mode": 2},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=str)
def test_values_out_of_range_are_refused_by_name(fields: dict[str, Any]) -> None:
    name = next(iter(fields))
    with pytest.raises(RequestError, match=name) as error:
        SamplingParams(**fields)
    assert error.value.parameter == name


def test_unset_fields_come_from_the_model_but_mirostat_takes_no_filters() -> None:
    defaults = {"top_p": 0.8, "typical_p": 0.9, "repetition_penalty": 1.1, "temperature": 0.6}
    usual = SamplingParams().resolve(defaults)
    assert (usual.top_p, usual.typical_p, usual.repetition_penalty) == (0.8, 0.9, 1.1)
    steered = SamplingParams(mirostat_mode=2).resolve(defaults)
    assert (steered.top_p, steered.typical_p, steered.repetition_penalty) == (1.0, 1.0, 1.1)
    assert steered.temperature == 0.6
    assert SamplingParams(mirostat_mode=2, top_k=-1, top_p=1.0).mirostat_mode == 2
    assert SamplingParams(logit_bias={"7": 1, 3: 2}).logit_bias == {3: 2.0, 7: 1.0}
    assert SamplingParams(bad_words="no").bad_words == ("no",)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("logit_bias", {"logit_bias": {8: 1.0}}),
        ("allowed_token_ids", {"allowed_token_ids": [1, 8]}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 4}),
        ("allowed_token_ids", {"allowed_token_ids": [0, 2], "min_tokens": 1,
                               "eos_ids": frozenset({0}), "bad_words": ((2,),)}),
        ("bad_words", {"bad_words": tuple((token,) for token in range(8))}),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_model_is_refused(name: str, asked: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=name) as error:
        check_processors(request(**asked), 8)
    assert error.value.parameter == name
    check_processors(request(allowed_token_ids=[0, 7], min_tokens=2, logit_bias={7: 2.0}), 8)


def test_a_row_without_an_id_left_is_an_error_that_says_why() -> None:
    asked = request(allowed_token_ids=[2])
    row = np.array([1.0, 1.0, GONE], dtype=np.float32)
    with pytest.raises(NonFiniteLogits, match="allowed_token_ids"):
        SAMPLER.choose(row, asked.params, SAMPLER.begin(asked), 0)
    asked = request([0], repetition_penalty=1e-9)
    row = np.array([3e38, 1.0, 1.0], dtype=np.float32)
    with pytest.raises(NonFiniteLogits, match="lower the penalties"):
        SAMPLER.choose(row, asked.params, SAMPLER.begin(asked), 0)
