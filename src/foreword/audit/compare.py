"""Compare two results of one request bit for bit, and say what a difference looks like.

    identical            same ids, same logprobs to the last bit, same finish reason
    near-tie numerics    the logit rows at the first difference lie within rounding of each other:
                         bits moved, and where the two best were close a token moved with them
    logic error          the rows are equal and the choice is not, or they are rows of something
                         else: a wrong key, position, row, random number or stop

The rows are those of two more runs that record them. When the second shows no row (it ended early,
or did not repeat the fault), the margin of the reference's two best logits decides in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from foreword.protocols import Logits
from foreword.types import Sequence, TokenLogprobs

NUMERICS, LOGIC, UNEXAMINED = "near-tie numerics", "logic error", "not examined"

# How far rounding may push a logit, as a share of the row's largest magnitude: a generous guess
# above what reordered sums do to tiny models. It only chooses the word in a report.
ROUNDING = {"float32": 1e-4, "bfloat16": 5e-2, "a16": 5e-2, "a8": 5e-2}

LogprobBits = tuple[int, str, tuple[tuple[int, str], ...]]


@dataclass(frozen=True, slots=True)
class Result:
    """What a request gave: the part that the contract speaks of."""

    token_ids: tuple[int, ...]
    logprobs: tuple[LogprobBits, ...]
    finish_reason: str | None
    prompt_logprobs: tuple[LogprobBits, ...] = ()

    @staticmethod
    def of(sequence: Sequence) -> Result:
        return Result(
            tuple(sequence.output_ids),
            tuple(map(bits, sequence.logprobs)),
            sequence.finish_reason,
            tuple(map(bits, sequence.prompt_logprobs)),
        )

    @property
    def num_logprobs(self) -> int:
        return sum(1 + len(top) for _, _, top in (*self.prompt_logprobs, *self.logprobs))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a result leaves the reference. `margin`: the reference's best raw logit minus its
    second; `moved`: the largest change of a logit there, None when the row was not seen."""

    case: str
    setting: str
    position: int  # output position, 0-based; of prompt logprobs that of the prompt's token
    what: str  # token | logprobs | length | finish reason | prompt logprobs | failure
    expected: str
    got: str
    margin: float | None = None
    moved: float | None = None
    verdict: str = UNEXAMINED

    def __str__(self) -> str:
        where = "prompt" if self.what == "prompt logprobs" else "output"
        parts = [f"{self.case}: {self.what} differs at {where} position {self.position}"]
        parts.append(f"expected {self.expected}, got {self.got}")
        if self.margin is not None:
            parts.append(f"top-2 margin {self.margin:.6g}")
        if self.moved is not None:
            parts.append(f"logits moved by up to {self.moved:.6g}")
        return "; ".join(parts) + f": {self.verdict}\n    with {self.setting}"


def bits(entry: TokenLogprobs) -> LogprobBits:
    """Floats as hexadecimal text: equal only if every bit is."""
    top = tuple((token, logprob.hex()) for token, logprob in entry.top)
    return entry.token_id, entry.logprob.hex(), top


def first_difference(expected: Result, got: Result) -> tuple[int, str, str, str] | None:
    """(position, what, expected, got) of the first difference; None when identical."""
    before, after = expected.prompt_logprobs, got.prompt_logprobs
    for position, pair in enumerate(zip_longest(before, after), start=1):
        if pair[0] != pair[1]:
            shown = [_shown((entry,)) if entry else "none" for entry in pair]
            return position, "prompt logprobs", shown[0], shown[1]
    for position, pair in enumerate(zip(expected.token_ids, got.token_ids, strict=False)):
        if pair[0] != pair[1]:
            return position, "token", str(pair[0]), str(pair[1])
        left, right = (result.logprobs[position : position + 1] for result in (expected, got))
        if left != right:
            return position, "logprobs", _shown(left), _shown(right)
    ends = [len(result.token_ids) for result in (expected, got)]
    if ends[0] != ends[1]:
        return min(ends), "length", f"{ends[0]} tokens", f"{ends[1]} tokens"
    reasons = [str(result.finish_reason) for result in (expected, got)]
    if reasons[0] != reasons[1]:
        return ends[0], "finish reason", reasons[0], reasons[1]
    if expected.logprobs != got.logprobs:
        counts = [f"{len(result.logprobs)} entries" for result in (expected, got)]
        return ends[0], "logprobs", counts[0], counts[1]
    return None


def top_two_margin(row: Logits) -> float:
    """Best raw logit minus the second best, of float32 [vocab]."""
    two = np.sort(row.astype(np.float64))[-2:]
    return float(two[1] - two[0])


def judge(
    reference: Logits | None, row: Logits | None, numerics: str
) -> tuple[str, float | None, float | None]:
    """(verdict, margin, moved) from the logit rows of both runs at the first difference."""
    if reference is None:
        return LOGIC, None, None
    margin = top_two_margin(reference)
    allowed = ROUNDING[numerics] * float(np.abs(reference[np.isfinite(reference)]).max())
    if row is None or row.shape != reference.shape:
        return (NUMERICS if margin <= allowed else LOGIC), margin, None
    if not np.array_equal(np.isfinite(reference), np.isfinite(row)):
        return LOGIC, margin, None
    finite = np.isfinite(reference)
    moved = float(np.abs(reference[finite].astype(np.float64) - row[finite]).max())
    return (NUMERICS if 0.0 < moved <= allowed else LOGIC), margin, moved


def _shown(entries: tuple[LogprobBits, ...]) -> str:
    if not entries:
        return "none"
    token, logprob, top = entries[0]
    best = ", ".join(f"{other}: {float.fromhex(value):.17g}" for other, value in top[:2])
    return f"{token}: {float.fromhex(logprob):.17g} ({best})"
