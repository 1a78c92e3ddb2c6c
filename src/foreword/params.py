"""What a user may ask of one request: the names that vLLM's, OpenAI's and llama.cpp's users know.

Checked when made: a value out of range raises RequestError naming the field. What a field does to
the logits is said where it is done (sample/); docs/parameters.md has the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foreword.errors import RequestError

if TYPE_CHECKING:
    import numpy as np

MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_SAMPLES = 128

LogitsProcessor = Callable[[SequenceOf[int], "np.ndarray"], "np.ndarray"]
"""(prompt ids + emitted ids, float32 row [vocab], a copy) -> the row to choose from."""

# What an unset field means where the model's generation config says nothing either.
NEUTRAL: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
}


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A form the text must have; exactly one field is set.

    json: a JSON schema (mapping or text). json_object: any JSON object. regex: a regular
    expression for the whole text. choice: one of these strings. grammar: EBNF text (Lark's form).
    """

    json: Mapping[str, Any] | str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] | list[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.choice is not None:
            object.__setattr__(self, "choice", tuple(self.choice))
        given = [self.json, self.json_object or None, self.regex, self.choice, self.grammar]
        if sum(item is not None for item in given) != 1:
            raise RequestError(
                "structured output takes exactly one of json, json_object, regex, choice, grammar",
                "structured_outputs",
            )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What the user asks of one request. `None` = take the model's default (`resolve`).

    temperature: >= 0; 0 is greedy. top_p: (0, 1]; top_k: 0 or -1 = off; min_p: [0, 1].
    typical_p: (0, 1], 1 = off. xtc_probability: [0, 1], 0 = off; xtc_threshold: [0, 1].
    mirostat_mode: 0 = off, 2; mirostat_tau: surprise aimed at, bits; mirostat_eta: learning rate.
    repetition_penalty: > 0, 1 = off (prompt and output). presence_penalty, frequency_penalty:
    [-2, 2], output only. dry_multiplier: >= 0, 0 = off; dry_base; dry_allowed_length;
    dry_penalty_last_n: -1 = whole context; dry_sequence_breakers: strings that end a match.
    logit_bias: id -> added to its logit, [-100, 100]. allowed_token_ids: nothing else may come.
    bad_words: texts that may not come. min_tokens: no end before so many.
    logits_processors: called in order with (ids so far, a copy of the row).
    structured_outputs: the form of the text.

    seed: 0 .. 2**64 - 1; None = a fresh one is drawn and reported. n: samples per prompt, sample i
    uses `derive(seed, i)`; best_of: so many are made, the n most likely returned.
    max_tokens: output tokens at most; None = until the context ends. time_limit: seconds after
    which the request is cut at its last token.
    stop: strings that end the text, not part of it unless include_stop_str_in_output.
    stop_token_ids: ids that end it.
    logprobs: None = off, k = the chosen token's and the k highest log-probabilities;
    logprobs_mode: "raw" (of the model's own logits) or "processed" (of what is chosen from).
    prompt_logprobs: the same for the prompt's tokens, raw.
    skip_special_tokens: False = special tokens show in the text.
    Raises RequestError naming the field.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = 16
    stop: tuple[str, ...] | list[str] | str | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    typical_p: float | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat_mode: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] | list[str] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    bad_words: tuple[str, ...] | list[str] | None = None
    min_tokens: int = 0
    logits_processors: tuple[LogitsProcessor, ...] | list[LogitsProcessor] | None = None
    structured_outputs: StructuredOutput | None = None
    best_of: int | None = None
    include_stop_str_in_output: bool = False
    time_limit: float | None = None
    logprobs_mode: str = "raw"
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        object.__setattr__(self, "stop", stop)
        for name in ("stop_token_ids", "bad_words", "logits_processors"):
            object.__setattr__(self, name, tuple(getattr(self, name) or ()))
        _check(self.temperature, "temperature", 0.0, math.inf)
        _check(self.top_p, "top_p", 0.0, 1.0)
        _check(self.min_p, "min_p", 0.0, 1.0)
        _check_int(self.top_k, "top_k", -1, None)
        _check_int(self.seed, "seed", 0, MAX_SEED)
        _check_int(self.n, "n", 1, MAX_SAMPLES)
        _check_int(self.max_tokens, "max_tokens", 1, None)
        _check_int(self.logprobs, "logprobs", 0, MAX_LOGPROBS)
        if self.top_p == 0.0:
            raise RequestError("top_p must be > 0; for greedy set temperature to 0", "top_p")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError("ignore_eos must be true or false", "ignore_eos")
        if not isinstance(self.skip_special_tokens, bool):
            raise RequestError("skip_special_tokens must be true or false", "skip_special_tokens")
        for text in stop:
            if not isinstance(text, str) or not text:
                raise RequestError("stop must hold non-empty strings; drop the empty one", "stop")
        for token in self.stop_token_ids or ():
            _check_int(token, "stop_token_ids", 0, None)

    def resolve(self, defaults: Mapping[str, float | int]) -> SamplingParams:
        """Fill unset sampling fields from a model's generation config, then neutral ones."""
        unset = {
            name: defaults.get(name, value)
            for name, value in NEUTRAL.items()
            if getattr(self, name) is None
        }
        return replace(self, **unset)  # type: ignore[arg-type]


def _check(value: Any, name: str, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {value!r}", name)
    if not low <= value <= high:
        bound = f">= {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise RequestError(f"{name} must be {bound}, got {value!r}", name)


def _check_int(value: Any, name: str, low: int, high: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, got {value!r}", name)
    if value < low or (high is not None and value > high):
        bound = f">= {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be {bound}, got {value!r}", name)
