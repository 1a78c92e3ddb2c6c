"""What `LLM.generate` returns: the attributes vLLM's users know, and our own beside them.

Of `best_of` samples the n with the highest cumulative logprob are returned, best first, ties by
the order they were made in; one that failed comes last. It is the sum of the chosen tokens'
logprobs, left to right in float64, of the `logprobs_mode` asked for (raw unless said), whether or
not logprobs are shown, and is not divided by the length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foreword.chat.events import ChatMessage, ToolCall
from foreword.chat.reply import ReplyStream
from foreword.text.stream import TextStream
from foreword.types import FinishReason, Sequence, SpeculationStats, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sample:
    """One sequence, its text so far, and when things happened (seconds of a monotonic clock)."""

    sequence: Sequence
    stream: TextStream
    index: int
    chat_date: str | None
    started: float
    num_returned: int = 1  # of the samples of its prompt
    num_shown: int | None = None  # alternatives to show of each token; None: no logprobs
    taken: int = 0  # tokens given out by `take`
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

    def take(self, text_of: Callable[[int], str]) -> Delta:
        """What has come since the last take. Withheld text comes later than its tokens do."""
        sequence, first = self.sequence, self.taken
        self.taken = sequence.num_output
        return Delta(
            text=self.stream.take(),
            token_ids=sequence.token_ids[sequence.num_prompt + first :],
            logprobs=None if self.num_shown is None else logprob_table(sequence, text_of, first),
            text_offsets=self.stream.offsets(first),
        )


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` counts from 1 among the listed ones; None when the chosen token is not among them."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class Delta:
    """A part of a sample: one entry per token, also where a step brought several."""

    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None
    text_offsets: list[int]

    def __bool__(self) -> bool:
        return bool(self.text or self.token_ids)


@dataclass(slots=True)
class CompletionOutput:
    """One sample. `sources[i]` names the drafter that had guessed token i, "" for the target.
    `text_offsets[i]`: where token i begins in `text`, in characters (of one that begins inside a
    character: where that character does).
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
    exactness: str = "exact"  # or "approximate: ...", where the request asked for it
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a prompt and of all its samples, those of `best_of` that are not returned too."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class RequestOutput:
    """One prompt and its samples. `prompt` is its text, if it came as text. `prompt_logprobs`: None
    for the first token, which nothing comes before, then as `CompletionOutput.logprobs`."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    usage: Usage | None = None


def most_likely(samples: list[Sample]) -> list[Sample]:
    """The samples to return; all of them as they were made where no more were made."""
    n = samples[0].num_returned
    if len(samples) <= n:
        return samples

    def rank(sample: Sample) -> tuple[bool, float, int]:
        """What was cut comes last: fewer tokens have a higher sum."""
        done = sample.sequence.finish_reason in ("stop", "length")
        return (
            sample.sequence.error is not None or not done,
            -cumulative(sample.sequence),
            sample.index,
        )

    return sorted(samples, key=rank)[:n]


def usage(samples: list[Sample]) -> Usage:
    """Of all the samples of one prompt."""
    made = sum(sample.sequence.num_output for sample in samples)
    return Usage(samples[0].sequence.num_prompt, made)


def completion(
    sample: Sample, text_of: Callable[[int], str], receipt: dict[str, Any]
) -> CompletionOutput:
    """The user's view of a sample that has ended; `text_of` gives the text of a token id."""
    sequence = sample.sequence
    shown = sample.num_shown is not None
    parts = sample.stream.message if isinstance(sample.stream, ReplyStream) else ChatMessage()
    return CompletionOutput(
        index=sample.index,
        text=sample.stream.text,
        token_ids=sequence.output_ids,
        logprobs=logprob_table(sequence, text_of) if shown else None,
        cumulative_logprob=cumulative(sequence) if shown else None,
        finish_reason=sequence.finish_reason,
        stop_reason=_stop_reason(sample, text_of),
        seed=sequence.request.seed,
        metrics=_metrics(sample),
        receipt=receipt,
        sources=list(sequence.sources),
        text_offsets=sample.stream.offsets(),
        error=None if sequence.error is None else str(sequence.error),
        exactness=sequence.exactness,
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
        "exactness": sample.sequence.exactness,
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
    sequence: Sequence, text_of: Callable[[int], str], first: int = 0
) -> list[dict[int, Logprob]]:
    """Per output token from `first` on: the chosen id and the highest ones."""
    return [_row(entry, text_of) for entry in sequence.logprobs[first:]]


def prompt_table(
    sequence: Sequence, text_of: Callable[[int], str]
) -> list[dict[int, Logprob] | None] | None:
    """Per prompt token, as far as it was read: None where prompt logprobs are not wanted."""
    if sequence.request.params.prompt_logprobs is None:
        return None
    return [None, *(_row(entry, text_of) for entry in sequence.prompt_logprobs)]


def _row(entry: TokenLogprobs, text_of: Callable[[int], str]) -> dict[int, Logprob]:
    row = {
        token: Logprob(logprob, rank, text_of(token))
        for rank, (token, logprob) in enumerate(entry.top, start=1)
    }
    row.setdefault(entry.token_id, Logprob(entry.logprob, None, text_of(entry.token_id)))
    return row


def cumulative(sequence: Sequence) -> float:
    """Of the chosen tokens, left to right."""
    total = 0.0
    for entry in sequence.logprobs:
        total += entry.logprob
    return total


def _stop_reason(sample: Sample, text_of: Callable[[int], str]) -> int | str | None:
    """A stop given as the text of a special token is watched for as an id, and named as given."""
    sequence = sample.sequence
    if sequence.finish_reason != "stop":
        return None
    if sample.stream.stop is not None:
        return sample.stream.stop
    last, params = sequence.token_ids[-1], sequence.request.params
    if last in (params.stop_token_ids or ()):
        return last
    text = text_of(last)
    return text if text in (params.stop or ()) else None
