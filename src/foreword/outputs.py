"""What `LLM.generate` returns: the attributes vLLM's users know, and our own beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foreword.chat.events import ChatMessage, ToolCall
from foreword.chat.reply import ReplyStream
from foreword.text.stream import TextStream
from foreword.types import FinishReason, Sequence, SpeculationStats


@dataclass(slots=True, eq=False)
class Sample:
    """One sequence, its text so far, and when things happened (seconds of a monotonic clock)."""

    sequence: Sequence
    stream: TextStream
    index: int
    chat_date: str | None
    started: float
    first: float | None = None  # when the first tokens were there, and how many
    num_first: int = 0
    ended: float | None = None

    def mark(self, now: float) -> None:
        """Note what has happened by `now`; a prefill chunk alone emits nothing."""
        if self.first is None and self.sequence.num_output:
            self.first, self.num_first = now, self.sequence.num_output
        if self.ended is None and self.sequence.finish_reason is not None:
            self.stream.finish()
            self.ended = now


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` counts from 1 among the listed ones; None when the chosen token is not among them."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `sources[i]` names the drafter that had guessed token i, "" for the target.
    Of a chat, `text` is the reply as it came; content, reasoning and tool_calls are its parts."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    cumulative_logprob: float | None  # left to right, of the chosen tokens
    finish_reason: FinishReason | None
    stop_reason: int | str | None  # the stop string or stop id that ended it; None for EOS
    seed: int
    metrics: dict[str, Any]
    receipt: dict[str, Any]
    sources: list[str] = field(default_factory=list)
    text_offsets: list[int] = field(default_factory=list)
    error: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its samples. `prompt` is its text, if it came as text."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None


def completion(
    sample: Sample, text_of: Callable[[int], str], receipt: dict[str, Any]
) -> CompletionOutput:
    """The user's view of a sample that has ended; `text_of` gives the text of a token id."""
    sequence = sample.sequence
    parts = sample.stream.message if isinstance(sample.stream, ReplyStream) else ChatMessage()
    return CompletionOutput(
        index=sample.index,
        text=sample.stream.text,
        token_ids=sequence.output_ids,
        logprobs=logprob_table(sequence, text_of),
        cumulative_logprob=_cumulative(sequence),
        finish_reason=sequence.finish_reason,
        stop_reason=_stop_reason(sample),
        seed=sequence.request.seed,
        metrics=_metrics(sample),
        receipt=receipt,
        sources=list(sequence.sources),
        error=None if sequence.error is None else str(sequence.error),
        content=parts.content,
        reasoning=parts.reasoning,
        tool_calls=parts.tool_calls,
    )


def _metrics(sample: Sample) -> dict[str, Any]:
    assert sample.ended is not None
    first = sample.first or sample.ended
    decode = sample.ended - first
    later = sample.sequence.num_output - sample.num_first
    return {
        "time_to_first_token_ms": (first - sample.started) * 1e3,
        "generation_time_ms": (sample.ended - sample.started) * 1e3,
        "tokens_per_second": later / decode if decode > 0 and later > 0 else None,
        "speculative_decoding": speculation_metrics(sample.sequence.stats),
    }


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


def logprob_table(
    sequence: Sequence, text_of: Callable[[int], str]
) -> list[dict[int, Logprob]] | None:
    """Per token: the chosen id and the highest ones."""
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


def _cumulative(sequence: Sequence) -> float | None:
    if sequence.request.params.logprobs is None:
        return None
    total = 0.0
    for entry in sequence.logprobs:
        total += entry.logprob
    return total


def _stop_reason(sample: Sample) -> int | str | None:
    sequence = sample.sequence
    if sequence.finish_reason != "stop":
        return None
    if sample.stream.stop is not None:
        return sample.stream.stop
    last = sequence.token_ids[-1]
    return last if last in (sequence.request.params.stop_token_ids or ()) else None
