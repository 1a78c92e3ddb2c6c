"""Results as answers: whole ones, and the events of a chat's stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from foreword.chat.events import Call, Content, Event, Reasoning
from foreword.outputs import CompletionOutput, RequestOutput
from foreword.serve.convert import Answer
from foreword.serve.logprobs import Row, TokenNames, chat_logprobs, completion_logprobs
from foreword.serve.responses import (
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatLogprobs,
    ChunkChoice,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    Function,
    Head,
    Message,
    MessageDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)

Whole = TypeVar("Whole", Completion, ChatCompletion, ChatCompletionChunk)


def usage_of(results: Sequence[RequestOutput]) -> Usage:
    """Tokens of all prompts and samples."""
    prompt = sum(len(result.prompt_token_ids) for result in results)
    made = sum(len(one.token_ids) for result in results for one in result.outputs)
    return Usage(prompt_tokens=prompt, completion_tokens=made, total_tokens=prompt + made)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text of a prompt, and where each of its tokens begins in it; for `echo`."""

    text: str = ""
    starts: Sequence[int] = ()


def completion_answer(
    head: Head,
    answer: Answer,
    results: Sequence[RequestOutput],
    prompts: Sequence[Prompt],
    names: TokenNames,
) -> Completion:
    """One choice per prompt and sample, in order."""
    choices: list[CompletionChoice] = []
    for result, prompt in zip(results, prompts, strict=True):
        for output in result.outputs:
            choices.append(
                CompletionChoice(
                    index=len(choices),
                    text=(prompt.text if answer.echo else "") + output.text,
                    logprobs=_completion_logprobs(answer, result, output, prompt, names),
                    finish_reason=output.finish_reason,
                    stop_reason=output.stop_reason,
                    token_ids=output.token_ids if answer.token_ids else None,
                    prompt_token_ids=result.prompt_token_ids if answer.token_ids else None,
                    seed=output.seed,
                )
            )
    outputs = [output for result in results for output in result.outputs]
    whole = Completion(**head.model_dump(), choices=choices, usage=usage_of(results))
    return with_ours(whole, outputs)


def _completion_logprobs(
    answer: Answer,
    result: RequestOutput,
    output: CompletionOutput,
    prompt: Prompt,
    names: TokenNames,
) -> CompletionLogprobs | None:
    if answer.alternatives is None or output.logprobs is None:
        return None
    ids, rows, offsets = output.token_ids, list[Row | None](output.logprobs), output.text_offsets
    if answer.echo:
        before = result.prompt_logprobs
        assert before is not None, "convert asks for prompt logprobs where they are echoed"
        ids, rows = [*result.prompt_token_ids, *ids], [*before, *rows]
        offsets = [*prompt.starts, *(len(prompt.text) + offset for offset in offsets)]
    return completion_logprobs(names, ids, rows, offsets)


def chat_answer(
    head: Head, answer: Answer, result: RequestOutput, names: TokenNames
) -> ChatCompletion:
    """One choice per sample."""
    whole = ChatCompletion(
        **head.model_dump(),
        choices=[_chat_choice(answer, output, names) for output in result.outputs],
        usage=usage_of([result]),
        prompt_token_ids=result.prompt_token_ids if answer.token_ids else None,
    )
    return with_ours(whole, result.outputs)


def _chat_choice(answer: Answer, output: CompletionOutput, names: TokenNames) -> ChatChoice:
    calls = [
        ToolCall(id=call.id, function=Function(name=call.name, arguments=call.arguments))
        for call in output.tool_calls
    ]
    logprobs = None
    if answer.alternatives is not None and output.logprobs is not None:
        logprobs = chat_logprobs(names, output.token_ids, output.logprobs, answer.alternatives)
    return ChatChoice(
        index=output.index,
        message=Message(
            content=output.content if output.content is not None or calls else "",
            reasoning_content=output.reasoning if answer.reasoning else None,
            tool_calls=calls or None,
        ),
        logprobs=logprobs,
        finish_reason=finish_reason(output.finish_reason, bool(calls)),
        stop_reason=output.stop_reason,
        token_ids=output.token_ids if answer.token_ids else None,
        seed=output.seed,
    )


def with_ours(whole: Whole, outputs: Sequence[CompletionOutput]) -> Whole:
    """Figures and receipts: of one choice as they are, of several under their number."""
    if len(outputs) == 1:
        whole.metrics = outputs[0].metrics
        whole.foreword = {"receipt": outputs[0].receipt}
        return whole
    whole.metrics = {str(place): output.metrics for place, output in enumerate(outputs)}
    receipts = {str(place): output.receipt for place, output in enumerate(outputs)}
    whole.foreword = {"receipts": receipts}
    return whole


def finish_reason(reason: str | None, calls: bool) -> str | None:
    """A reply that stopped by itself with calls in it waits for their results."""
    return "tool_calls" if calls and reason == "stop" else reason


class ChatEvents:
    """The events of one choice of a streamed chat. `call_id`: index of a call -> its id."""

    def __init__(self, head: Head, answer: Answer, index: int = 0) -> None:
        self._head = head.model_dump()
        self._answer = answer
        self._index = index
        self._calls = False

    def first(self) -> ChatCompletionChunk:
        return self._chunk(MessageDelta(role="assistant", content=""))

    def delta(
        self,
        events: Iterable[Event],
        ids: Sequence[str],
        logprobs: ChatLogprobs | None = None,
        token_ids: list[int] | None = None,
    ) -> ChatCompletionChunk | None:
        """One event for what a step brought; None when it shows nothing. ids: of the calls.
        logprobs, token_ids: of the step's tokens, whose text may come later; None: not wanted."""
        delta = MessageDelta()
        for event in events:
            if isinstance(event, Content):
                delta.content = (delta.content or "") + event.text
            elif isinstance(event, Reasoning):
                if self._answer.reasoning:
                    delta.reasoning_content = (delta.reasoning_content or "") + event.text
            else:
                delta.tool_calls = [*(delta.tool_calls or []), self._call(event, ids)]
        if delta == MessageDelta() and not token_ids and not (logprobs and logprobs.content):
            return None
        chunk = self._chunk(delta)
        chunk.choices[0].logprobs = logprobs
        chunk.choices[0].token_ids = token_ids
        return chunk

    def last(
        self, reason: str | None, stop_reason: int | str | None, seed: int | None = None
    ) -> ChatCompletionChunk:
        chunk = self._chunk(MessageDelta())
        chunk.choices[0].seed = seed
        chunk.choices[0].finish_reason = finish_reason(reason, self._calls)
        chunk.choices[0].stop_reason = stop_reason
        return chunk

    def _call(self, event: Call, ids: Sequence[str]) -> ToolCallDelta:
        self._calls = True
        begins = event.name is not None
        return ToolCallDelta(
            index=event.index,
            id=ids[event.index] if begins else None,
            type="function" if begins else None,
            function=Function(name=event.name, arguments=event.arguments),
        )

    def _chunk(self, delta: MessageDelta) -> ChatCompletionChunk:
        choice = ChunkChoice(index=self._index, delta=delta)
        return ChatCompletionChunk(**self._head, choices=[choice])
