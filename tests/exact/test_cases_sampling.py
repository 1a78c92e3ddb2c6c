"""Cases of parts D and E, and bad rows: parameters, seeds and logprobs through the whole loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from harness import Job, Rig, drive, equal, open_llm, prompt, rig, smollm2

import apparatus
from foreword.draft.scripted import chain, right_until
from foreword.errors import NonFiniteLogits, RequestError
from foreword.types import SamplingParams

slow = pytest.mark.slow
ONE_BRANCH = {"num_branches": 1, "confidence_threshold": 0.0}

# A value off the default for every field: `None` would hide a field that nobody tried.
UNUSUAL: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.3},
    "top_p": {"temperature": 1.0, "top_p": 0.5},
    "top_k": {"temperature": 1.0, "top_k": 3},
    "min_p": {"temperature": 1.0, "min_p": 0.2},
    "seed": {"temperature": 1.0, "seed": 2**63},
    "n": {"temperature": 1.0, "n": 3},
    "max_tokens": {"max_tokens": 9},
    "stop": {"temperature": 1.0, "stop": ["e", "\x07", "<t300>", "<|special_260|>"]},
    "stop_token_ids": {"temperature": 1.0, "stop_token_ids": list(range(0, 470, 9))},
    "ignore_eos": {"ignore_eos": True},
    "logprobs": {"logprobs": 20},
    "typical_p": {"temperature": 1.0, "typical_p": 0.5},
    "xtc_probability": {"temperature": 1.0, "xtc_probability": 0.5},
    "xtc_threshold": {"temperature": 1.0, "xtc_probability": 1.0, "xtc_threshold": 0.02},
    "mirostat_mode": {"temperature": 1.0, "mirostat_mode": 2},
    "mirostat_tau": {"temperature": 1.0, "mirostat_mode": 2, "mirostat_tau": 2.0},
    "mirostat_eta": {"temperature": 1.0, "mirostat_mode": 2, "mirostat_eta": 0.9},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
    "dry_multiplier": {"dry_multiplier": 2.0},
    "dry_base": {"dry_multiplier": 0.5, "dry_base": 3.0},
    "dry_allowed_length": {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    "dry_penalty_last_n": {
        "dry_multiplier": 2.0,
        "dry_allowed_length": 1,
        "dry_penalty_last_n": 5,
    },
    "dry_sequence_breakers": {"dry_multiplier": 2.0, "dry_sequence_breakers": ["e", "<t300>"]},
    "logit_bias": {"logit_bias": dict.fromkeys(range(0, 470, 7), 3.0)},
    "allowed_token_ids": {"allowed_token_ids": list(range(0, 470, 3))},
    "bad_words": {"bad_words": [f"<t{token}>" for token in range(272, 470, 2)]},
    "min_tokens": {"stop_token_ids": list(range(0, 470, 2)), "min_tokens": 7},
    "logits_processors": {"logits_processors": [lambda ids, row: np.roll(row, len(ids))]},
    "logprobs_mode": {
        "temperature": 1.0,
        "top_k": 9,
        "logprobs": 20,
        "logprobs_mode": "processed",
    },
    "prompt_logprobs": {"prompt_logprobs": 3},
    "best_of": {"temperature": 1.0, "n": 2, "best_of": 4},
    "include_stop_str_in_output": {
        "temperature": 1.0,
        "stop": ["e", "\x07", "<t300>"],
        "include_stop_str_in_output": True,
    },
    "time_limit": {"time_limit": 1e6},
    "structured_outputs": {"structured_outputs": {"regex": "[a-f]{5,9}(x|yz)*"}},
    "sampler": {"temperature": 1.0, "n": 3, "sampler": "arithmetic"},
    "arithmetic_code": {"temperature": 1.0, "sampler": "arithmetic", "arithmetic_code": 0.37},
    "skip_special_tokens": {
        "skip_special_tokens": False,
        "logit_bias": {apparatus.ENDOFTEXT: 5.0},
        "ignore_eos": True,
    },
}
APPROXIMATE = {"acceptance", "acceptance_options"}  # by name not what plain decoding gives


@pytest.mark.parametrize("name", sorted({f.name for f in fields(SamplingParams)} - APPROXIMATE))
def test_v09_every_parameter_with_speculation_equals_without(name: str) -> None:
    """V09: each field away from its default; whole and streamed; with speculation = without. A new
    field fails here until it is listed."""
    target = rig()
    given = {"temperature": 0.0, "seed": 5, "max_tokens": 16, **UNUSUAL[name]}
    params = SamplingParams(**given)
    ids = list(prompt(8))
    plain, fast = (
        target.door(target.engine(**setting))
        for setting in ({"batch": 1}, {"draft": rig(noise=apparatus.NOISE), "k": 4})
    )
    whole, faster = (llm.generate([ids], params)[0] for llm in (plain, fast))
    assert whole.prompt_logprobs == faster.prompt_logprobs
    assert whole.usage == faster.usage
    expected, got = whole.outputs, faster.outputs
    for left, right in zip(expected, got, strict=True):
        assert left.token_ids == right.token_ids
        assert left.text == right.text
        assert left.logprobs == right.logprobs
        assert left.finish_reason == right.finish_reason
        assert left.seed == right.seed
    if params.num_samples == 1:
        streamed = "".join(delta for delta, _ in fast.stream(ids, params))
        assert streamed == expected[0].text


class Scaled:
    """A target whose logits are `change(logits, batch)`."""

    def __init__(self, inner: Rig, change: Callable[[np.ndarray, Any], np.ndarray]) -> None:
        self._inner, self._change = inner.model, change
        self.vocab_size, self.kernels = inner.vocab_size, inner.model.kernels

    def forward(self, batch: Any, kv: Any) -> np.ndarray:
        return self._change(self._inner.forward(batch, kv), batch)


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_v35_tiny_temperatures_are_greedy_through_the_loop(numerics: str) -> None:
    """V35: 1e-5, 1e-7 and 1e-45 give the greedy text where the two best logits are apart, bfloat16
    included; temperature 2 on logits of magnitude 1e4 stays finite."""
    target = rig(numerics)
    job = Job(prompt(12), 24, logprobs=2)
    greedy = target.plain(job)
    entries = [[float.fromhex(p) for _, p in top] for _, _, top in greedy.logprobs]
    close = [step for step, (best, second) in enumerate(entries) if best - second < 1e-3]
    clear = min(close, default=24)  # below 1e-3 the noise of temperature 1e-5 may decide
    assert clear >= 12
    for temperature in (1e-5, 1e-7, 1e-45):
        cold = replace(job, temperature=temperature)
        (result,) = target.exact([cold], draft=target, options=ONE_BRANCH, k=4)
        assert result.token_ids[:clear] == greedy.token_ids[:clear]
    hot = replace(job, temperature=2.0)

    peaks: list[float] = []

    def huge(logits: np.ndarray, _: Any) -> np.ndarray:
        peaks.append(float(np.abs(logits).max()) * 1000)
        return logits * np.float32(1000)

    plain, fast = (
        target.run([hot], model=Scaled(target, huge), **setting)[0]
        for setting in ({"batch": 1}, {"draft": target, "k": 4})
    )
    equal(plain, fast)
    assert max(peaks) > 1e4
    assert plain.finish_reason == "length"
    assert all(math.isfinite(float.fromhex(entry[1])) for entry in plain.logprobs)


def test_v36_a_seed_decides_whatever_runs_beside_it() -> None:
    """V36: five times alone, five times under 8-way load, and after a restart; other seeds differ;
    seeds outside 0 .. 2**64 - 1 are refused by name."""
    target = rig()
    job = Job(prompt(6), 12, temperature=1.8, seed=7)
    for turn in range(5):
        target.exact([job], method="ngram", k=1 + turn)
        load = [Job(prompt(4 + n, n + turn), 12, temperature=1.8, seed=n) for n in range(7)]
        jobs = [*load[:turn], job, *load[turn:]]
        engine = target.engine("ngram", k=4, batch=8)
        results = drive(engine, [(n % 3, n, one) for n, one in enumerate(jobs)])
        equal(target.plain(job), results[turn], f"load {turn}")
    restarted = Rig(open_llm(apparatus.tiny_checkpoint(max_position=512)))
    equal(target.plain(job), restarted.plain(job), "restart")
    restarted.llm.close()
    others = {target.plain(replace(job, seed=seed)).token_ids for seed in range(8, 13)}
    assert target.plain(job).token_ids not in others
    llm = target.door(target.engine("ngram"))
    for seed in (0, 2**31, 2**63 - 1, 2**64 - 1):
        params = SamplingParams(temperature=1.8, seed=seed, max_tokens=4)
        first, second = (llm.generate([list(job.prompt)], params)[0].outputs[0] for _ in range(2))
        assert first.token_ids == second.token_ids
        assert first.seed == seed
    for seed in (-1, 2**64):
        with pytest.raises(RequestError, match="seed"):
            SamplingParams(seed=seed)


def distinct_and_repeatable(llm: Any, ids: list[int]) -> int:
    """Of 20 unseeded requests in sequence: distinct texts; each repeats with the seed it was
    told."""
    params = SamplingParams(temperature=1.0, max_tokens=16)
    told = [llm.generate([ids], params)[0].outputs[0] for _ in range(20)]
    assert len({out.seed for out in told}) == 20
    seeded = [replace(params, seed=out.seed) for out in told]
    again = llm.generate([ids] * 20, seeded)
    for out, repeated in zip(told, again, strict=True):
        assert repeated.outputs[0].token_ids == out.token_ids
    return len({out.text for out in told})


def test_v37_unseeded_requests_get_seeds_of_their_own() -> None:
    """V37: on T."""
    target = rig()
    assert distinct_and_repeatable(target.door(target.engine("ngram", k=4)), list(prompt(6))) >= 15


@slow
def test_v37_unseeded_requests_on_a_real_model() -> None:
    """V37: SmolLM2, "Once upon a time", 16 tokens, speculation on."""
    target = smollm2()
    llm = target.door(target.engine("ngram"))
    assert distinct_and_repeatable(llm, target.tokenizer.encode("Once upon a time")) >= 15


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_v39_logprobs_of_accepted_and_corrected_tokens(numerics: str) -> None:
    """V39: greedy, K 4, drafts always right and always wrong: the same bits as plain, one entry per
    token, none of them a 0.0 that nobody computed, and in float32 transformers' values."""
    target, k = rig(numerics), 4
    job = Job(prompt(16), 32, logprobs=1)
    answers = target.answers([job], k)
    for wrong in (0, k):
        script = chain(answers, k, right_until(wrong), target.vocab_size)
        (result,) = target.exact([job], script=script, k=k)
        chosen = [float.fromhex(entry[1]) for entry in result.logprobs]
        assert len(chosen) == 32
        assert all(value < 0.0 for value in chosen)
    if numerics == "float32":
        theirs = transformers_logprobs(target, job.prompt, result.token_ids)
        difference = np.abs(theirs - np.array(chosen))
        print(f"largest difference to transformers {difference.max():.2e}")
        assert difference.max() < 1e-4
        assert abs(theirs.sum() - sum(chosen)) < 1e-4 * len(chosen)


def transformers_logprobs(target: Rig, ids: tuple[int, ...], output: tuple[int, ...]) -> np.ndarray:
    """float64 [outputs]: log-softmax over the ids with a meaning, at the emitted tokens."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        target.checkpoint.path, attn_implementation="eager"
    )
    with torch.inference_mode():
        logits = model(torch.tensor([[*ids, *output]])).logits[0].double()
    rows = logits[len(ids) - 1 : -1, : target.vocab_size].log_softmax(-1)
    return rows[torch.arange(len(output)), torch.tensor(output)].numpy()


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
@pytest.mark.parametrize("when", ["prompt", "mid"])
def test_v95_a_non_finite_row_ends_its_own_request_only(numerics: str, when: str) -> None:
    """V95: NaN appears in one request's rows, in its prompt or at its fifth token; it ends with an
    error that says so, its neighbours keep their bits, and its pages can be used again."""
    target, bad_token = rig(numerics), 250
    jobs = [Job(prompt(5 + 8 * n, n, 240), 12, temperature=n % 2, seed=n) for n in range(4)]
    at = len(jobs[2].prompt) - 1 + (5 if when == "mid" else 0)
    marked = replace(jobs[2], prompt=(bad_token, *jobs[2].prompt[1:]))

    def poison(logits: np.ndarray, batch: Any) -> np.ndarray:
        logits = logits.copy()
        owners = np.repeat(np.arange(len(batch.segments)), [len(s.tokens) for s in batch.segments])
        for place, row in enumerate(batch.logit_rows.tolist()):
            segment = batch.segments[owners[row]]
            if batch.positions[row] >= at and _content(engine, segment)[0] == bad_token:
                logits[place, 7] = np.nan
        return logits

    model = Scaled(target, poison)
    engine = target.engine("ngram", k=4, batch=4, block=4, slots=256, model=model)
    placed = [jobs[0], jobs[1], marked, jobs[3]]
    results = drive(engine, [(0, place, job) for place, job in enumerate(placed)])
    for place in (0, 1, 3):
        equal(target.plain(jobs[place]), results[place], f"neighbour {place}")
    failed = results[2]
    assert failed.finish_reason == "error"
    assert isinstance(failed.sequence.error, NonFiniteLogits)
    assert "NaN" in str(failed.sequence.error)
    healthy = target.plain(marked).token_ids
    assert failed.token_ids == (healthy[:5] if when == "mid" else ())
    engine.parts.kv.check()
    assert engine.parts.kv.num_free_tokens == engine.parts.kv.capacity
    (after,) = drive(engine, [(0, 9, jobs[1])])
    equal(target.plain(jobs[1]), after)


def _content(engine: Any, segment: Any) -> list[int]:
    """The ids of the running sequence a segment belongs to, found by its first slot."""
    for sequence in engine.parts.scheduler.running:
        if engine.parts.kv.slots(sequence.id)[0] == segment.slots[0]:
            return sequence.token_ids
    raise AssertionError("a segment of no running sequence")


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_v95_nan_in_the_weights_of_one_token(numerics: str) -> None:
    """V95: an embedding row of NaN: whoever holds that token fails, whoever reuses its pages or
    sits beside it does not, and the library's door says which output failed."""
    good = rig(numerics)
    broken = Rig(open_llm(apparatus.tiny_checkpoint(max_position=512, dtype=numerics), numerics))
    with torch.inference_mode():
        broken.model._embedding[250] = math.nan
    jobs = [Job(prompt(5 + 8 * n, n, 240), 8, temperature=n % 2, seed=n) for n in range(3)]
    sick = [Job((*prompt(9, 5, 240), 250, *prompt(tail, 6, 240)), 8) for tail in (0, 20)]
    engine = broken.engine("ngram", k=4, batch=2, block=4, slots=200, rows=24)
    order = [jobs[0], sick[0], jobs[1], sick[1], jobs[2]]
    results = drive(engine, [(0, place, job) for place, job in enumerate(order)])
    for place in (1, 3):
        assert results[place].finish_reason == "error"
        assert not results[place].token_ids
    for place in (0, 2, 4):
        equal(good.plain(order[place]), results[place], f"neighbour {place}")
    outputs = broken.door(engine).generate(
        [list(job.prompt) for job in order[:2]], SamplingParams(temperature=0.0, max_tokens=4)
    )
    assert outputs[0].outputs[0].error is None
    assert "NaN" in (outputs[1].outputs[0].error or "")
    broken.llm.close()
