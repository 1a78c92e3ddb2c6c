"""The audit on tiny checkpoints: identical over its settings, and its tools tell differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import apparatus
from foreword.audit.cases import ALIGNED, ASKED, LONG, NUM_SIBLINGS, SAMPLINGS, make_cases
from foreword.audit.compare import LOGIC, NUMERICS, Result, first_difference, judge
from foreword.audit.drive import schedule
from foreword.audit.grid import covering_array
from foreword.audit.host import host_settings
from foreword.audit.laboratory import Laboratory
from foreword.audit.run import audit, window
from foreword.audit.settings import THOROUGH, Setting
from foreword.audit.streams import stream_faults
from foreword.config import EngineConfig, SpeculativeConfig
from foreword.sample.sampler import GumbelSampler
from foreword.types import TokenLogprobs

SETTINGS = [Setting.of(row) for row in covering_array(THOROUGH)]
FIRST = 5  # settings per numerics that CI runs; all are slow

PLAN = [
    pytest.param("float32", "llama", slice(0, FIRST), id="float32"),
    pytest.param("bfloat16", "qwen3", slice(FIRST, 2 * FIRST), id="bfloat16"),
    pytest.param("float32", "llama", slice(None), marks=pytest.mark.slow, id="float32-all"),
    pytest.param("bfloat16", "llama", slice(None), marks=pytest.mark.slow, id="bfloat16-all"),
    pytest.param("float32", "mistral", slice(None), marks=pytest.mark.slow, id="window-all"),
]


@pytest.mark.parametrize(("numerics", "architecture", "part"), PLAN)
def test_the_audit_finds_everything_identical(numerics, architecture, part, record_property):
    window_size = 24 if architecture == "mistral" else None
    options = {"dtype": numerics, "max_position": 256, "architecture": architecture}
    path = apparatus.target(**options, sliding_window=window_size)
    draft = SpeculativeConfig(model=str(apparatus.drafter_noise(**options)))
    config = EngineConfig(model=str(path), numerics=numerics, threads=1, speculative=draft)
    laboratory = Laboratory(config)
    cases = make_cases(
        laboratory.tokenizer.encode,
        (),
        max_tokens=12,
        context=laboratory.context,
        eos_ids=laboratory.checkpoint.eos_ids,
        seed=2,
        every=part == slice(None),
        compiled=laboratory.grammar,
    )
    assert cases[-1].grammar is not None
    report = audit(laboratory, cases, SETTINGS[part])
    laboratory.close()
    assert report.identical, "\n".join(map(str, report.differences[:5]))
    assert report.num_settings == len(SETTINGS[part])
    assert report.num_accepted > 0
    assert report.num_preemptions > 0
    assert report.num_prefix_hits > 0
    for name in ("num_settings", "num_outputs", "num_positions", "num_logprobs"):
        record_property(name, getattr(report, name))
    print(f"{report.num_settings} settings, {report.num_outputs} outputs, ", end="")
    print(f"{report.num_positions} tokens, {report.num_logprobs} logprobs compared")


# The tools -----------------------------------------------------------------------------------


def result(*tokens: int, shift: float = 0.0, reason: str = "length") -> Result:
    entries = [TokenLogprobs(token, -1.5, ((token, -1.5), (9, -2.0 + shift))) for token in tokens]
    bits = tuple(
        (one.token_id, one.logprob.hex(), tuple((i, value.hex()) for i, value in one.top))
        for one in entries
    )
    return Result(tokens, bits, reason)


def test_the_first_difference_is_found_and_named():
    expected = result(1, 2, 3)
    assert first_difference(expected, result(1, 2, 3)) is None
    assert first_difference(expected, result(1, 5, 3))[:2] == (1, "token")
    assert first_difference(expected, result(1, 2))[:2] == (2, "length")
    assert first_difference(expected, result(1, 2, 3, reason="stop"))[:2] == (3, "finish reason")
    nudged = float(np.nextafter(-2.0, 0.0)) + 2.0
    assert first_difference(expected, result(1, 2, 3, shift=nudged))[:2] == (0, "logprobs")


def test_the_sign_of_a_zero_is_a_bit():
    zero, minus = (Result((1,), ((1, value.hex(), ()),), "stop") for value in (0.0, float("-0.0")))
    assert first_difference(zero, minus)[:2] == (0, "logprobs")


def test_the_verdict_comes_from_the_rows():
    row = np.linspace(-8.0, 8.0, 64, dtype=np.float32)
    nudged = row.copy()
    nudged[10] += 1e-5
    other = row[::-1].copy()
    masked = row.copy()
    masked[3] = -np.inf
    step = float(row[-1]) - float(row[-2])
    assert judge(row, nudged, "float32")[0] == NUMERICS
    assert judge(row, row.copy(), "float32") == (LOGIC, step, 0.0)
    assert judge(row, other, "float32")[0] == LOGIC
    assert judge(row, masked, "float32")[0] == LOGIC
    assert judge(row, None, "float32") == (LOGIC, step, None)
    tie = row.copy()
    tie[-2] = np.nextafter(tie[-1], np.float32(0))
    assert judge(tie, None, "float32")[0] == NUMERICS


def test_hostile_settings_are_hostile_and_leave_no_trace():
    """The autouse fixture compares the switches before and after; here: they are really flipped."""
    with host_settings("hostile"):
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float64
        assert torch.get_num_threads() > 1
        with pytest.raises(FloatingPointError):
            np.float32(3e38) * np.float32(10)
    assert not torch.is_autocast_enabled("cpu")
    with host_settings("clean"):
        assert torch.get_default_dtype() == torch.float32


def test_the_sampler_s_noise_belongs_to_seed_and_position():
    for seed in (0, 1, 2**64 - 1):
        assert stream_faults(GumbelSampler(), 512, seed) == []


def cases_of(context: int = 256, every: bool = True):
    encode = lambda text: list(text.encode())  # noqa: E731
    return make_cases(
        encode, ("hello",), max_tokens=16, context=context, eos_ids=frozenset(), seed=3, every=every
    )


def test_cases_cover_prompts_and_samplings():
    cases = cases_of()
    assert {case.name.split(", ")[1] for case in cases} == set(SAMPLINGS)
    assert sum("prompt 1" in case.name for case in cases) == len(SAMPLINGS)
    assert len({case.seed for case in cases}) == len(cases)
    assert set(ASKED) <= {case.name.split(", ")[-1] for case in cases}
    together = [case for case in cases if case.group is not None]
    assert len(together) == NUM_SIBLINGS
    assert len({case.prompt_ids for case in together}) == 1
    long = next(case for case in cases if case.name.startswith("long"))
    assert len(long.prompt_ids) == LONG < 128 < LONG + 16
    left, right = (
        next(case.prompt_ids for case in cases if case.name.startswith(name))
        for name in ("left twin", "right twin")
    )
    assert left[:ALIGNED] != right[:ALIGNED]
    assert left[ALIGNED:] == right[ALIGNED:]
    assert max(case.num_positions for case in cases_of(context=64)) == 64
    assert len(cases_of(every=False)) == 28 + len(ASKED) + NUM_SIBLINGS


def test_windows_reach_every_case():
    cases = cases_of()
    seen = {case for place in range(len(cases) // 7 + 1) for case in window(cases, place, 7)}
    assert seen == set(cases)
    assert window(cases, 0, 1000) == cases


def test_urgent_requests_come_late_and_order_is_the_setting_s():
    cases = cases_of()[:4]
    setting = Setting(arrival="reversed", preemption="priority")
    timed = schedule(setting, cases)
    assert [request.id for _, request in timed] == ["3", "2", "1", "0"]
    assert [request.priority for _, request in timed] == [0, -1, -2, -3]
    assert [step for step, _ in timed] == [0, 0, 4, 4]
    staggered = schedule(replace(setting, arrival="staggered", preemption="none"), cases)
    assert [step for step, _ in staggered] == [0, 1, 2, 3]
