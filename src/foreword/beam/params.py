"""What a user may ask of a beam search: vLLM's names, Hugging Face's meaning.

Checked when made: RequestError names the field. What is not here makes no sense for beams, which
are ranked and not drawn: top-k, top-p, min-p, seeds, mirostat; nor do they look for stop strings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from foreword.errors import RequestError
from foreword.params import LogitsProcessor, SamplingParams, StructuredOutput

MAX_BEAM_WIDTH = 128
MAX_PENALTY = 8.0  # 100,000 tokens to the power of 8 are still far from the end of float64
SHARED = (
    "max_tokens", "ignore_eos", "stop_token_ids", "min_tokens", "allowed_token_ids", "bad_words",
    "logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logits_processors", "structured_outputs",
)  # fmt: skip
MOVING = ("logit_bias", "repetition_penalty", "presence_penalty", "frequency_penalty",
          "logits_processors")  # fmt: skip


@dataclass(frozen=True, slots=True)
class BeamSearchParams:
    """A beam's score is the sum, left to right, of its tokens' raw log-probabilities; what is
    returned is ordered by score / (number of output tokens, end token included) ** length_penalty.

    beam_width: 1 .. 128 beams. n: how many are returned at most; None = beam_width.
    length_penalty: [-8, 8]; > 0 favours long outputs, 0 compares sums. early_stopping: True = end
    when beam_width outputs are complete; False = when the best running beam, at its present length,
    is not better than the worst of them; "never" = when no running beam can become better.
    best_first: find what "never" finds with fewer rows, expanding the best beam first (one row a
    pass); needs early_stopping "never" and nothing that moves logits.

    max_tokens, ignore_eos, stop_token_ids, min_tokens, allowed_token_ids, bad_words,
    structured_outputs: as in SamplingParams. logit_bias, repetition_penalty, presence_penalty,
    frequency_penalty, logits_processors too: a changed logit counts as changed in the score
    (sample/expansion.py). temperature: 0, for those who come with one.
    """

    beam_width: int
    max_tokens: int | None = 16
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    best_first: bool = False
    n: int | None = None
    stop_token_ids: tuple[int, ...] | list[int] | None = None
    min_tokens: int = 0
    allowed_token_ids: tuple[int, ...] | list[int] | None = None
    bad_words: tuple[str, ...] | list[str] | None = None
    logit_bias: Mapping[int, float] | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logits_processors: tuple[LogitsProcessor, ...] | list[LogitsProcessor] | None = None
    structured_outputs: StructuredOutput | None = None

    def __post_init__(self) -> None:
        _whole(self.beam_width, "beam_width", MAX_BEAM_WIDTH)
        if self.n is not None:
            _whole(self.n, "n", self.beam_width)
        if self.temperature != 0:
            raise RequestError(
                f"temperature must be 0 for a beam search, which draws nothing; got "
                f"{self.temperature!r}",
                "temperature",
            )
        penalty = self.length_penalty
        number = isinstance(penalty, (int, float)) and not isinstance(penalty, bool)
        if not number or not abs(penalty) <= MAX_PENALTY:
            raise RequestError(
                f"length_penalty must be between -{MAX_PENALTY:g} and {MAX_PENALTY:g}, "
                f"got {penalty!r}",
                "length_penalty",
            )
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise RequestError(
                f'early_stopping must be true, false or "never", got {self.early_stopping!r}',
                "early_stopping",
            )
        if not isinstance(self.best_first, bool):
            raise RequestError("best_first must be true or false", "best_first")
        if self.best_first and self.early_stopping != "never":
            raise RequestError(
                'best_first finds what early_stopping "never" finds; set early_stopping to it',
                "early_stopping",
            )
        self.sampling()  # checks the rest

    def sampling(self) -> SamplingParams:
        """What the rules of its requests read; greedy, without a filter."""
        shared = {name: getattr(self, name) for name in SHARED}
        neutral = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0}
        return SamplingParams(**shared, **neutral)  # type: ignore[arg-type]

    def check_monotone(self, sampling: SamplingParams) -> None:
        """Best-first search needs scores that only fall. `sampling`: resolved, a model's own
        defaults included."""
        for name in MOVING if self.best_first else ():
            value = getattr(sampling, name)
            if value and not (name == "repetition_penalty" and value == 1.0):
                raise RequestError(
                    f"best_first needs scores that only fall, and {name} may raise one; drop it or "
                    "best_first",
                    name,
                )


def names() -> list[str]:
    return [field.name for field in fields(BeamSearchParams)]


def _whole(value: Any, name: str, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise RequestError(f"{name} must be a whole number 1 to {high}, got {value!r}", name)


assert math.isfinite(100_000.0**MAX_PENALTY)
