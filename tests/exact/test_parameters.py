"""Any mix of request parameters, batched and speculated: the bits of each request alone.

A case is a handful of requests, each with parameters of its own, under one setting of the engine
(drafter, tree, draft length, rows of a pass, KV room, prefix cache). Everything a user gets is
compared with the same request decoded alone, one token at a time: ids, text, every logprob, prompt
logprobs, finish and stop reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from harness import Rig, count, rig
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from foreword.build import make_sampler
from foreword.errors import RequestError
from foreword.outputs import CompletionOutput, RequestOutput
from foreword.params import SamplingParams, StructuredOutput

VOCAB = 256
QUICK, MANY = 60, 2000


def halved(ids: Any, row: np.ndarray) -> np.ndarray:
    """A user's own processor: depends on the ids so far."""
    row[ids[-1] % VOCAB] -= 1.5
    row[len(ids) % VOCAB] += 1.0
    return row


def sharper(ids: Any, row: np.ndarray) -> np.ndarray:
    return row * np.float32(1.25)


TOKEN = st.integers(0, VOCAB - 1)
TEXT = st.text("abcdefgh ", min_size=1, max_size=3)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    "top_p": st.sampled_from([0.2, 0.7, 0.95]),
    "top_k": st.sampled_from([1, 5, 40]),
    "min_p": st.sampled_from([0.02, 0.2]),
    "typical_p": st.sampled_from([0.3, 0.9]),
    "xtc_probability": st.sampled_from([0.5, 1.0]),
    "xtc_threshold": st.sampled_from([0.01, 0.1]),
    "repetition_penalty": st.sampled_from([0.8, 1.3]),
    "presence_penalty": st.sampled_from([-1.0, 0.7]),
    "frequency_penalty": st.sampled_from([-0.5, 0.6]),
    "dry_multiplier": st.sampled_from([0.8]),
    "dry_allowed_length": st.sampled_from([1, 2]),
    "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-100.0, -2.0, 3.0]), max_size=4),
    "allowed_token_ids": st.lists(TOKEN, min_size=5, max_size=60, unique=True),
    "bad_words": st.lists(TEXT, min_size=1, max_size=3),
    "min_tokens": st.integers(1, 8),
    "stop": st.lists(TEXT, min_size=1, max_size=2),
    "stop_token_ids": st.lists(TOKEN, min_size=1, max_size=6),
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "logprobs": st.integers(0, 6),
    "logprobs_mode": st.sampled_from(["raw", "processed"]),
    "prompt_logprobs": st.integers(0, 3),
    "n": st.integers(1, 3),
    "best_of": st.integers(1, 3),
    "sampler": st.just("arithmetic"),
    "logits_processors": st.lists(st.sampled_from([halved, sharper]), min_size=1, max_size=2),
    "structured_outputs": st.sampled_from(
        [
            StructuredOutput(regex="[a-f]{3,9}(x|yz)*"),
            StructuredOutput(choice=("abc", "abd", "badge")),
            StructuredOutput(json={"type": "array", "items": {"type": "integer"}, "maxItems": 3}),
        ]
    ),
}
"""Every parameter that may change a token, or what is reported of it."""


@st.composite
def parameters(draw: Callable[..., Any]) -> SamplingParams:
    """Some of the fields; a mix that is refused by name is drawn again without its last field."""
    names = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=9, unique=True))
    fixed = {"seed": draw(st.integers(0, 2**64 - 1)), "max_tokens": draw(st.integers(1, 18))}
    params = SamplingParams(**fixed)
    for name in names:
        fixed[name] = draw(FIELDS[name])
        try:
            params = SamplingParams(**fixed)
        except RequestError:
            del fixed[name]
    return params


@st.composite
def engines(draw: Callable[..., Any]) -> dict[str, Any]:
    method = draw(st.sampled_from(["suffix", "recycle", "ngram", "auto", "model", "lookahead"]))
    setting: dict[str, Any] = {
        "tree": draw(st.sampled_from(["chain", "best_first", "goodput", "template"])),
        "k": draw(st.sampled_from([1, 4, 9])),
        "batch": draw(st.sampled_from([1, 3, 16])),
        "rows": draw(st.sampled_from([17, 64, 256])),
        "prefix": draw(st.booleans()),
        "slots": draw(st.sampled_from([160, 4096])),  # the first preempts
        "threads": draw(st.sampled_from([1, 2])),
    }
    return {"draft": target()} | setting if method == "model" else {"method": method} | setting


@st.composite
def requests(draw: Callable[..., Any]) -> list[tuple[tuple[int, ...], SamplingParams]]:
    """Prompts share beginnings, so that drafts hit and prefixes are found."""
    base = draw(st.lists(TOKEN, min_size=2, max_size=40))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        keep = draw(st.integers(1, len(base)))
        own = draw(st.lists(TOKEN, max_size=12))
        found.append((tuple(base[:keep] + own), draw(parameters())))
    return found


SEEN: Counter[str] = Counter()  # parameter -> outputs that it took part in


def target() -> Rig:
    return rig("bfloat16", backend="cpu")


def check(asked: list[tuple[tuple[int, ...], SamplingParams]], setting: dict[str, Any]) -> None:
    one = target()
    try:
        expected = [alone(one, prompt, params) for prompt, params in asked]
    except RequestError:  # a mix that only the door can refuse is refused in a batch, too
        with pytest.raises(RequestError):
            together(one, asked, setting)
        return
    for place, (want, got) in enumerate(zip(expected, together(one, asked, setting), strict=True)):
        params = asked[place][1]
        SEEN.update(name for name in FIELDS if differs(params, name))
        assert seen(want) == seen(got), f"request {place}: {params} under {setting}"
        for output in got.outputs:
            count(1, len(output.token_ids), sum(map(len, output.logprobs or ())))


def alone(one: Rig, prompt: tuple[int, ...], params: SamplingParams) -> RequestOutput:
    engine = one.engine("none", batch=1, prefix=False, sampler=make_sampler(one.model))
    return one.door(engine).generate([prompt], params)[0]


def together(one: Rig, asked: list[Any], setting: dict[str, Any]) -> list[RequestOutput]:
    engine = one.engine(**setting, sampler=make_sampler(one.model))
    found = one.door(engine).generate(
        [prompt for prompt, _ in asked], [params for _, params in asked]
    )
    engine.parts.kv.check()
    assert not engine.has_work
    return found


def differs(params: SamplingParams, name: str) -> bool:
    return bool(getattr(params, name) != getattr(SamplingParams(), name))


def seen(result: RequestOutput) -> Any:
    """What the user is given, floats as hexadecimal text."""
    prompt_logprobs = getattr(result, "prompt_logprobs", None)
    return [exact(output) for output in result.outputs], bits(prompt_logprobs)


def exact(output: CompletionOutput) -> Any:
    return (
        output.token_ids,
        output.text,
        bits(output.logprobs),
        bits(output.cumulative_logprob),
        output.finish_reason,
        output.stop_reason,
        output.seed,
        output.error,
    )


def bits(value: Any) -> Any:
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    if hasattr(value, "logprob"):
        return bits((value.logprob, value.rank, value.decoded_token))
    return value


PLAIN = settings(
    suppress_health_check=list(HealthCheck), phases=(Phase.explicit, Phase.generate, Phase.shrink)
)


@settings(PLAIN, max_examples=QUICK)
@given(requests(), engines())
def test_any_mix_of_parameters_is_exact(asked: Any, setting: dict[str, Any]) -> None:
    check(asked, setting)


@pytest.mark.slow
@settings(PLAIN, max_examples=MANY)
@given(requests(), engines())
def test_many_mixes_of_parameters_are_exact(asked: Any, setting: dict[str, Any]) -> None:
    check(asked, setting)


def test_every_parameter_was_drawn() -> None:
    """After the test above; a parameter that is never drawn is never tested."""
    if SEEN:
        assert not set(FIELDS) - set(SEEN), sorted(set(FIELDS) - set(SEEN))
