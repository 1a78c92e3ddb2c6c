"""The events of a streamed answer, made from what each step brought. One event is one choice's.

Figures, receipts and the seed come where they are known: the seed with a choice's last event, the
rest with the last event of all, which is the usage if that was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from foreword.chat.events import Call
from foreword.chat.reply import ReplyStream
from foreword.llm import LLM
from foreword.outputs import CompletionOutput, Sample, prompt_table
from foreword.serve.logprobs import Row, TokenNames, chat_logprobs, completion_logprobs
from foreword.serve.ready import Ready
from foreword.serve.respond import ChatEvents, Prompt, Whole, with_ours
from foreword.serve.responses import (
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Head,
    Usage,
)
from foreword.serve.worker import Part, Ticket

Chunk = Completion | ChatCompletionChunk


class Tally:
    """Tokens told so far, and the outputs of the choices that have ended."""

    def __init__(self, llm: LLM, ticket: Ticket) -> None:
        self._llm = llm
        self._prompt = sum(len(one.ask.prompt_ids) for one in ticket.prepared)
        self._left = len(ticket.samples)
        self._made = 0
        self._outputs: dict[int, CompletionOutput] = {}

    def add(self, part: Part) -> CompletionOutput | None:
        """The whole sample, with its last part."""
        self._made += len(part.delta.token_ids)
        if not part.ended:
            return None
        self._left -= 1
        self._outputs[part.place] = output = self._llm.result(part.sample)
        return output

    @property
    def complete(self) -> bool:
        return not self._left

    @property
    def outputs(self) -> list[CompletionOutput]:
        return [self._outputs[place] for place in sorted(self._outputs)]

    @property
    def usage(self) -> Usage:
        total = self._prompt + self._made
        return Usage(prompt_tokens=self._prompt, completion_tokens=self._made, total_tokens=total)


class CompletionStream:
    """Of /v1/completions. An echo waits for the prompt's logprobs, which its first sample reads;
    what its other samples bring before that is held back."""

    def __init__(self, llm: LLM, ready: Ready, ticket: Ticket, head: Head) -> None:
        self._llm, self._ready, self._head = llm, ready, head.model_dump()
        self._answer = ready.job.answer
        self._names = TokenNames(llm.tokenizer, self._answer.tokens_as_ids)
        self._tally = Tally(llm, ticket)
        self._prompts = [
            Echo(prompt, group) for prompt, group in zip(ready.prompts, ticket.groups, strict=True)
        ]

    def begin(self) -> list[Chunk]:
        return []

    def read(self, part: Part) -> list[Chunk]:
        if not self._answer.echo:
            return self._events(part, 0)
        echo = self._prompts[part.place // self._ready.job.params.n]
        if echo.told:
            return self._events(part, len(echo.prompt.text))
        echo.held.append(part)
        if part.sample is not echo.group[0]:
            return []
        echo.told = True
        first = part.place
        events: list[Chunk] = [self._echo(echo, first + index) for index in range(len(echo.group))]
        for one in echo.held:
            events += self._events(one, len(echo.prompt.text))
        return events

    def end(self) -> list[Chunk]:
        if not self._answer.usage:
            return []
        chunk = Completion(**self._head, choices=[], usage=self._tally.usage)
        return [with_ours(chunk, self._tally.outputs)]

    def _events(self, part: Part, before: int) -> list[Chunk]:
        """`before`: characters of the prompt in the text."""
        delta, output = part.delta, self._tally.add(part)
        choice = CompletionChoice(index=part.place, text=delta.text)
        if delta.logprobs is not None and self._answer.alternatives is not None:
            offsets = [before + offset for offset in delta.text_offsets]
            choice.logprobs = self._logprobs(delta.token_ids, delta.logprobs, offsets)
        if self._answer.token_ids:
            choice.token_ids = delta.token_ids
        if output is not None:
            choice.finish_reason, choice.stop_reason = output.finish_reason, output.stop_reason
            choice.seed = output.seed
        return [finished(Completion(**self._head, choices=[choice]), self._tally, self._ready)]

    def _echo(self, echo: Echo, place: int) -> Completion:
        choice = CompletionChoice(index=place, text=echo.prompt.text)
        sequence = echo.group[0].sequence
        rows = prompt_table(sequence, self._llm.tokenizer.shown)
        if rows is not None and self._answer.alternatives is not None:
            ids = sequence.request.prompt_ids
            choice.logprobs = self._logprobs(ids, rows, echo.prompt.starts)
        if self._answer.token_ids:
            choice.prompt_token_ids = list(sequence.request.prompt_ids)
        return Completion(**self._head, choices=[choice])

    def _logprobs(
        self, ids: Sequence[int], rows: Sequence[Row | None], offsets: Sequence[int]
    ) -> CompletionLogprobs:
        return completion_logprobs(self._names, ids, rows, offsets)


@dataclass(slots=True)
class Echo:
    """A prompt that is to be echoed before each of its samples."""

    prompt: Prompt
    group: list[Sample]
    told: bool = False
    held: list[Part] = field(default_factory=list)


class ChatStream:
    """Of /v1/chat/completions."""

    def __init__(self, llm: LLM, ready: Ready, ticket: Ticket, head: Head) -> None:
        self._ready, self._head = ready, head
        self._answer = ready.job.answer
        self._names = TokenNames(llm.tokenizer, self._answer.tokens_as_ids)
        self._tally = Tally(llm, ticket)
        self._prompt_ids = ticket.prepared[0].ask.prompt_ids
        self._choices = [
            ChatEvents(head, self._answer, index) for index in range(len(ticket.samples))
        ]

    def begin(self) -> list[Chunk]:
        events = [choice.first() for choice in self._choices]
        if self._answer.token_ids:
            events[0].prompt_token_ids = self._prompt_ids
        return list(events)

    def read(self, part: Part) -> list[Chunk]:
        choice, delta = self._choices[part.place], part.delta
        output = self._tally.add(part)
        logprobs = None
        if delta.logprobs is not None and self._answer.alternatives is not None:
            logprobs = chat_logprobs(
                self._names, delta.token_ids, delta.logprobs, self._answer.alternatives
            )
        ids = delta.token_ids if self._answer.token_ids else None
        event = choice.delta(part.events, call_ids(part), logprobs, ids)
        events = [] if event is None else [event]
        if output is not None:
            events.append(choice.last(output.finish_reason, output.stop_reason, output.seed))
        last = len(events) - 1
        return [
            finished(one, self._tally, self._ready) if place == last else one
            for place, one in enumerate(events)
        ]

    def end(self) -> list[Chunk]:
        if not self._answer.usage:
            return []
        chunk = ChatCompletionChunk(**self._head.model_dump(), choices=[], usage=self._tally.usage)
        return [with_ours(chunk, self._tally.outputs)]


def call_ids(part: Part) -> list[str]:
    """Ids of the tool calls that the part speaks of, by index."""
    stream = part.sample.stream
    assert isinstance(stream, ReplyStream)
    indices = [event.index for event in part.events if isinstance(event, Call)]
    return [stream.call_ids.format(index) for index in range(max(indices, default=-1) + 1)]


def finished(chunk: Whole, tally: Tally, ready: Ready) -> Whole:
    """The event with what belongs to its moment: usage so far, and all figures at the very end."""
    answer = ready.job.answer
    if answer.usage_always:
        chunk.usage = tally.usage
    if tally.complete and not answer.usage:
        with_ours(chunk, tally.outputs)
    return chunk
