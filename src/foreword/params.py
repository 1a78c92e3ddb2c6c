"""What a user may ask of one request: the names that vLLM's, OpenAI's and llama.cpp's users know.

Checked when made: a value out of range raises RequestError naming the field. What a field does to
the logits is said where it is done (sample/); docs/parameters.md has the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from foreword.errors import RequestError
from foreword.structured import StructuredOutput as StructuredOutput

if TYPE_CHECKING:
    import numpy as np

MAX_LOGPROBS = 20
MAX_SEED = 2**64 - 1
MAX_SAMPLES = 128
LOGPROBS_MODES = ("raw", "processed")
SAMPLERS = ("gumbel", "arithmetic")

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

FILTERS = ("top_k", "top_p", "min_p", "typical_p", "xtc_probability")  # what mirostat replaces
MOST = 1e9  # of a penalty: far beyond use, and no logit overflows
RANGES: dict[str, tuple[float, float]] = {
    "typical_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "mirostat_tau": (0.0, 1000.0),
    "mirostat_eta": (0.0, 1000.0),
    "repetition_penalty": (1.0 / MOST, MOST),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "dry_multiplier": (0.0, MOST),
    "dry_base": (1.0, MOST),
}
BIAS = 100.0  # a logit_bias is between -BIAS and BIAS


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What the user asks of one request. `None` = take the model's default (`resolve`).

    temperature: >= 0; 0 is greedy. top_p: (0, 1]; top_k: 0 or -1 = off; min_p: [0, 1].
    typical_p: (0, 1], 1 = off. xtc_probability: [0, 1], 0 = off; xtc_threshold: [0, 1].
    mirostat_mode: 0 = off, 2 (then no filter above may be asked for); mirostat_tau: surprise aimed
    at, bits, (0, 1000]; mirostat_eta: learning rate, [0, 1000].
    repetition_penalty: [1e-9, 1e9], 1 = off (prompt and output). presence_penalty,
    frequency_penalty: [-2, 2], output only. dry_multiplier: [0, 1e9], 0 = off; dry_base: [1, 1e9];
    dry_allowed_length: >= 1; dry_penalty_last_n: -1 = whole context; dry_sequence_breakers: strings
    that end a match.
    logit_bias: id -> added to its logit, [-100, 100]. allowed_token_ids: nothing else may come.
    bad_words: texts that may not come. min_tokens: no end before so many, <= max_tokens.
    logits_processors: called in order with (ids so far, a copy of the row).
    structured_outputs: the form of the text.

    seed: 0 .. 2**64 - 1; None = a fresh one is drawn and reported. n: samples per prompt, sample i
    uses `derive(seed, i)`; best_of: so many are made, the n most likely returned (outputs.py).
    max_tokens: output tokens at most; None = until the context ends; 0 with prompt_logprobs only.
    time_limit: seconds (> 0) from the call on, after which the request is cut at its last token.
    stop: strings that end the text, not part of it unless include_stop_str_in_output.
    stop_token_ids: ids that end it.
    logprobs: None = off, k = the chosen token's and the k highest log-probabilities, at most
    MAX_LOGPROBS; logprobs_mode: "raw" (of the model's own logits) or "processed" (of what is chosen
    from: sample/logprobs.py). prompt_logprobs: the same for the prompt's tokens, always raw.
    acceptance: a file of accept/; all but "exact" let drafts through that plain decoding would not
    have chosen, and the result says "approximate". acceptance_options: its own settings.
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
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
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
    sampler: str = "gumbel"
    arithmetic_code: float | None = None
    acceptance: str = "exact"
    acceptance_options: Mapping[str, Any] | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        for item in fields(self):  # None, as JSON's null: not given, where it has no meaning
            if getattr(self, item.name) is None and "None" not in str(item.type):
                object.__setattr__(self, item.name, item.default)
        stop = (self.stop,) if isinstance(self.stop, str) else _listed(self.stop, "stop")
        object.__setattr__(self, "stop", stop)
        for name in ("stop_token_ids", "logits_processors"):
            object.__setattr__(self, name, _listed(getattr(self, name), name))
        for name in ("bad_words", "dry_sequence_breakers"):
            object.__setattr__(self, name, _texts(getattr(self, name), name))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.structured_outputs is not None:
            form = StructuredOutput.of(self.structured_outputs)
            object.__setattr__(self, "structured_outputs", form)
        check(self.temperature, "temperature", 0.0, math.inf)
        check(self.top_p, "top_p", 0.0, 1.0)
        check(self.min_p, "min_p", 0.0, 1.0)
        check_int(self.top_k, "top_k", -1, None)
        check_int(self.seed, "seed", 0, MAX_SEED)
        check_int(self.n, "n", 1, MAX_SAMPLES)
        check_int(self.best_of, "best_of", self.n, MAX_SAMPLES)
        check_int(self.max_tokens, "max_tokens", 0, None)
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise RequestError(
                "max_tokens must be >= 1, got 0; nothing would be computed (0 is for "
                "prompt_logprobs)",
                "max_tokens",
            )
        check_int(self.logprobs, "logprobs", 0, MAX_LOGPROBS)
        check_int(self.prompt_logprobs, "prompt_logprobs", 0, MAX_LOGPROBS)
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise RequestError(
                f"logprobs_mode must be one of {', '.join(LOGPROBS_MODES)}, "
                f"got {self.logprobs_mode!r}",
                "logprobs_mode",
            )
        check(self.time_limit, "time_limit", 0.0, math.inf)
        if self.time_limit == 0.0:
            raise RequestError("time_limit must be > 0 seconds, or None for none", "time_limit")
        if not isinstance(self.acceptance, str) or not self.acceptance:
            raise RequestError(
                f"acceptance must be a name such as 'exact', got {self.acceptance!r}", "acceptance"
            )
        if self.acceptance_options is not None:
            if not isinstance(self.acceptance_options, Mapping):
                raise RequestError(
                    f"acceptance_options must map names to values, got {self.acceptance_options!r}",
                    "acceptance_options",
                )
            if self.acceptance == "exact":
                raise RequestError(
                    "acceptance_options have no effect in exact mode; name an acceptance or drop "
                    "them",
                    "acceptance_options",
                )
        if self.top_p == 0.0:
            raise RequestError("top_p must be > 0; for greedy set temperature to 0", "top_p")
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false", name)
        for text in stop:
            if not isinstance(text, str) or not text:
                raise RequestError(
                    f"stop must hold non-empty strings, got {text!r}; drop it", "stop"
                )
        for token in self.stop_token_ids or ():
            check_int(token, "stop_token_ids", 0, None)
        self._check_processors()
        self._check_sampler()

    def _check_processors(self) -> None:
        """The fields of sample/'s processors and filters."""
        for name, (low, high) in RANGES.items():
            check(getattr(self, name), name, low, high)
        if self.typical_p == 0.0:
            raise RequestError("typical_p must be > 0; 1 switches it off", "typical_p")
        check_int(self.dry_allowed_length, "dry_allowed_length", 1, None)
        check_int(self.dry_penalty_last_n, "dry_penalty_last_n", -1, None)
        check_int(self.min_tokens, "min_tokens", 0, None)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens {self.min_tokens} is above max_tokens {self.max_tokens}", "min_tokens"
            )
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", tuple(self.allowed_token_ids))
            for token in self.allowed_token_ids:
                check_int(token, "allowed_token_ids", 0, None)
            if not self.allowed_token_ids:
                raise RequestError(
                    "allowed_token_ids is empty: nothing could be chosen; leave it out for all ids",
                    "allowed_token_ids",
                )
        for processor in self.logits_processors or ():
            if not callable(processor):
                raise RequestError(
                    f"logits_processors must hold callables, got {processor!r}", "logits_processors"
                )
        self._check_mirostat()

    def _check_mirostat(self) -> None:
        if self.mirostat_mode not in (0, 2) or isinstance(self.mirostat_mode, bool):
            raise RequestError(
                f"mirostat_mode must be 0 (off) or 2, got {self.mirostat_mode!r}", "mirostat_mode"
            )
        if not self.mirostat_mode:
            return
        if self.mirostat_tau == 0.0:
            raise RequestError("mirostat_tau must be > 0; for greedy set temperature to 0",
                               "mirostat_tau")  # fmt: skip
        for name in FILTERS:
            value = getattr(self, name)
            if value not in (None, NEUTRAL.get(name, 0.0)) and not (
                name == "top_k" and value == -1
            ):
                raise RequestError(
                    f"mirostat_mode decides what may be chosen, and so does {name}; "
                    f"drop one of them",
                    name,
                )

    @property
    def num_samples(self) -> int:
        """Samples that are made of a prompt; n of them are returned."""
        return self.n if self.best_of is None else self.best_of

    def _check_sampler(self) -> None:
        if self.sampler not in SAMPLERS:
            known = ", ".join(SAMPLERS)
            raise RequestError(f"sampler must be one of {known}; got {self.sampler!r}", "sampler")
        if self.sampler != "gumbel" and self.acceptance != "exact":
            raise RequestError(
                f"acceptance {self.acceptance!r} needs sampler 'gumbel', not {self.sampler!r}; "
                "drop one of them",
                "acceptance",
            )
        code = self.arithmetic_code
        if code is None:
            return
        check(code, "arithmetic_code", 0.0, 1.0)
        if code == 1.0 or self.sampler != "arithmetic" or self.n != 1:
            raise RequestError(
                "arithmetic_code must be < 1 and needs sampler 'arithmetic' and n 1: it is the "
                "number that one sample follows",
                "arithmetic_code",
            )

    def resolve(self, defaults: Mapping[str, float | int]) -> SamplingParams:
        """Fill unset sampling fields from a model's generation config, then neutral ones. A model's
        filters do not apply to a request that asks for mirostat."""
        unset = {
            name: value if self.mirostat_mode and name in FILTERS else defaults.get(name, value)
            for name, value in NEUTRAL.items()
            if getattr(self, name) is None
        }
        return replace(self, **unset)  # type: ignore[arg-type]


def processor_name(processor: LogitsProcessor) -> str:
    """What errors and receipts call a user's callable: its qualified name, or its class's."""
    named = processor if hasattr(processor, "__qualname__") else type(processor)
    return f"{named.__module__}.{named.__qualname__}"


def _listed(value: Any, name: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple, range, type(None))):
        raise RequestError(f"{name} must be a list, got {value!r}", name)
    return tuple(value or ())


def _texts(value: Any, name: str) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else _listed(value, name)
    for text in texts:
        if not isinstance(text, str) or not (text.strip(" ") if name == "bad_words" else text):
            raise RequestError(f"{name} must hold texts with something in them, got {text!r}", name)
    return texts


def _bias(value: Any) -> dict[int, float] | None:
    """Ids in order, as numbers; JSON has them as text."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise RequestError(f"logit_bias must map token ids to numbers, got {value!r}", "logit_bias")
    found: dict[int, float] = {}
    for key, amount in value.items():
        token = int(key) if isinstance(key, str) and key.isdecimal() else key
        check_int(token, "logit_bias", 0, None)
        if amount is None:
            raise RequestError(f"logit_bias of id {token} must be a number, got None", "logit_bias")
        check(amount, "logit_bias", -BIAS, BIAS)
        found[token] = float(amount)
    return dict(sorted(found.items())) or None


def check(value: Any, name: str, low: float, high: float) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise RequestError(f"{name} must be a finite number, got {value!r}", name)
    if not low <= value <= high:
        bound = f">= {low:g}" if high == math.inf else f"between {low:g} and {high:g}"
        raise RequestError(f"{name} must be {bound}, got {value!r}", name)


def check_int(value: Any, name: str, low: int, high: int | None) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{name} must be a whole number, got {value!r}", name)
    if value < low or (high is not None and value > high):
        bound = f">= {low}" if high is None else f"between {low} and {high}"
        raise RequestError(f"{name} must be {bound}, got {value!r}", name)
