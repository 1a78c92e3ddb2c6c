"""What `LLM.generate` returns, in the shape vLLM's users know."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foreword.types import FinishReason, Sequence, SpeculationStats


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` counts from 1 among the listed ones; None when the chosen token is not among them."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `sources[i]` names the drafter that had guessed token i, "" for the target."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: FinishReason | None
    seed: int
    metrics: dict[str, Any]
    receipt: dict[str, Any]
    sources: list[str] = field(default_factory=list)
    error: str | None = None


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its samples."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]


def speculation_metrics(stats: SpeculationStats) -> dict[str, Any]:
    """Counts of verify passes; names as in vLLM's per-request metrics."""
    return {
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.acceptance_rate,
        "acceptance_histogram": dict(sorted(stats.histogram.items())),
        "num_spec_steps": stats.num_steps,
        "num_draft_tokens": stats.num_drafted,
        "num_accepted_draft_tokens": stats.num_accepted,
    }


def logprob_table(sequence: Sequence, text_of: Any) -> list[dict[int, Logprob]] | None:
    """Per token: the chosen id and the highest ones; `text_of` turns an id into its text."""
    if sequence.request.params.logprobs is None:
        return None
    table = []
    for entry in sequence.logprobs:
        row = {
            token: Logprob(logprob, rank, text_of(token))
            for rank, (token, logprob) in enumerate(entry.top, start=1)
        }
        row.setdefault(entry.token_id, Logprob(entry.logprob, None, text_of(entry.token_id)))
        table.append(row)
    return table
