"""The offline door: `LLM(model).generate(prompts, params)` and `.chat(messages, params)`.

Turns text into requests and sequences back into text; the engine in between sees ids only.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Any

from foreword import prompts as forms
from foreword.build import Built, Progress, build
from foreword.chat.events import Event
from foreword.chat.prepare import ChatOptions, prepare
from foreword.chat.reply import ReplyForm, ReplyStream, text_stream
from foreword.config import CacheConfig, EngineConfig, SchedulerConfig, read_speculative_config
from foreword.errors import ConfigError, RequestError
from foreword.outputs import CompletionOutput, RequestOutput, Sample, completion
from foreword.prompts import Prompt
from foreword.receipt import make_receipt
from foreword.sample.noise import derive, fresh_seed, request_seed
from foreword.text.stops import split_stops
from foreword.text.template import encode_chat
from foreword.types import Handling, Request, SamplingParams

Messages = SequenceOf[Mapping[str, Any]]
PLAIN_HANDLING = Handling()


class LLM:
    """A model, ready to generate. May be used from several threads, and as a context manager.

    model: a Hugging Face folder, a .gguf file, `org/name`, or a built-in name. speculative_config:
    {"method": ..., "model": ..., "num_speculative_tokens": ..., ...} or None for the default;
    {"method": "none"} is plain decoding. tool_call_parser: a file of chat/styles; None = what the
    chat template teaches. reasoning_parser: "think" or "none"; None = by the template. Others are
    EngineConfig's. Raises ConfigError, WeightsError, DownloadError, KernelUnavailable.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | None = None,
        revision: str | None = None,
        numerics: str | None = None,
        quantization: str | None = None,
        backend: str | None = None,
        isa: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        kv_cache_memory: int | None = None,
        kv_cache_dtype: str = "auto",
        kv_store: str = "paged",
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        generation_config: str = "auto",
        seed: int | None = None,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.chat_options = ChatOptions(
            tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser
        )
        config = EngineConfig(
            model=str(model),
            revision=revision,
            numerics=numerics,
            quantization=quantization,
            backend=backend,
            isa=isa,
            device=device,
            threads=threads,
            max_model_len=max_model_len,
            generation_config=generation_config,
            seed=seed,
            scheduler=SchedulerConfig(max_num_seqs, max_num_batched_tokens),
            cache=CacheConfig(
                kv_store, block_size, kv_cache_memory, enable_prefix_caching, kv_cache_dtype
            ),
            speculative=read_speculative_config(dict(speculative_config or {})),
        )
        self.built: Built = build(config, progress)
        self.engine = self.built.engine
        self.tokenizer = self.built.tokenizer
        self._numbers = itertools.count()
        self._live: dict[str, Sample] = {}  # by sequence id: whoever steps marks everybody's
        self._lock = Lock()  # held for one step at a time

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        handling: Handling = PLAIN_HANDLING,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (text or token ids) as one batch; results in the order given.

        sampling_params: one for all, or one per prompt. A bad prompt raises RequestError before
        anything runs. A request that fails on its own ends with finish_reason "error". handling:
        priority, deadline and what is shared with others; never the text.
        """
        listed = forms.as_list(prompts)
        ids = [self._encode(prompt, place) for place, prompt in enumerate(listed)]
        texts = [forms.text_of(prompt) for prompt in listed]
        return self._run(texts, ids, sampling_params, None, progress, handling=handling)

    def chat(
        self,
        messages: Messages | SequenceOf[Messages],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        tools: SequenceOf[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        strict: bool = False,
        date: str | None = None,
        handling: Handling = PLAIN_HANDLING,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template. The parts of a reply are in
        `content`, `reasoning` and `tool_calls` of each output.

        tools, tool_choice, parallel_tool_calls: as OpenAI's clients send them (chat/tools.py).
        chat_template: instead of the model's; chat_template_kwargs: variables that it reads.

        add_generation_prompt: None = unless the final message is continued. strict: text of
        messages never becomes a control token. date: what a template that asks for the date is
        told, ISO form; default today. It is part of the prompt, and so of the receipt.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        talks: list[Any] = [messages] if single else list(messages)
        date = date or datetime.date.today().isoformat()
        options = replace(
            self.chat_options,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            strict=strict,
            date=date,
        )
        each = zip(talks, _params_list(sampling_params, len(talks)), strict=True)
        chats = [prepare(self.tokenizer, talk, params, options) for talk, params in each]
        ids = [self._encode(chat.ids, place) for place, chat in enumerate(chats)]
        params = [chat.params for chat in chats]
        texts: list[str | None] = [None] * len(ids)
        replies = [chat.form for chat in chats]
        return self._run(texts, ids, params, date, progress, replies, handling)

    def encode_chat(self, messages: Messages, **options: Any) -> list[int]:
        """The prompt ids of a conversation; `options` as in text.template.encode_chat."""
        return encode_chat(self.tokenizer, messages, **options)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams, chat_date: str | None = None
    ) -> Iterator[tuple[str, Sample]]:
        """Yield (new text, sample) as one request goes on; closing the iterator aborts it."""
        if sampling_params.n != 1:
            raise RequestError(f"a stream has one sample, got n = {sampling_params.n}", "n")
        ids = self._encode(prompt, 0)
        (sample,) = self._submit(ids, sampling_params, chat_date)
        try:
            while sample.ended is None:
                self._step(sample)
                yield sample.stream.take(), sample
            if rest := sample.stream.take():  # another caller's step ended it
                yield rest, sample
        finally:
            self._retire([sample])

    def stream_chat(
        self, messages: Messages, sampling_params: SamplingParams, **options: Any
    ) -> Iterator[tuple[list[Event], Sample]]:
        """As `stream`, for one conversation: what is new of its content, reasoning and tool calls.
        options: as in `chat`."""
        if sampling_params.n != 1:
            raise RequestError(f"a stream has one sample, got n = {sampling_params.n}", "n")
        options["date"] = options.get("date") or datetime.date.today().isoformat()
        asked = replace(self.chat_options, **options)
        chat = prepare(self.tokenizer, messages, sampling_params, asked)
        ids = self._encode(chat.ids, 0)
        (sample,) = self._submit(ids, chat.params, options["date"], chat.form)
        stream = sample.stream
        assert isinstance(stream, ReplyStream)
        try:
            while sample.ended is None:
                self._step(sample)
                yield stream.take_events(), sample
            if rest := stream.take_events():  # another caller's step ended it
                yield rest, sample
        finally:
            self._retire([sample])

    def result(self, sample: Sample) -> CompletionOutput:
        """A finished (or cut) sample as the user sees it."""
        receipt = make_receipt(self.built, sample.sequence, sample.chat_date)
        if isinstance(sample.stream, ReplyStream) and sample.stream.enough:
            receipt["ended_by"] = "tool_call"  # plain decoding of the ids alone would go on
        return completion(sample, self.tokenizer.token_text, receipt)

    def close(self) -> None:
        """Release worker threads. The object cannot be used afterwards."""
        self.built.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _encode(self, prompt: Any, place: int) -> list[int]:
        built = self.built
        return forms.token_ids(prompt, place, self.tokenizer, built.vocab_size, built.context)

    def _run(
        self,
        texts: list[str | None],
        ids: list[list[int]],
        params: SamplingParams | SequenceOf[SamplingParams] | None,
        chat_date: str | None,
        progress: Progress | None,
        replies: SequenceOf[ReplyForm | None] | None = None,
        handling: Handling = PLAIN_HANDLING,
    ) -> list[RequestOutput]:
        each = _params_list(params, len(ids))
        read_as = replies or [None] * len(ids)
        groups: list[list[Sample]] = []
        try:
            for prompt, one, form in zip(ids, each, read_as, strict=True):
                groups.append(self._submit(prompt, one, chat_date, form, handling))
            self._drain([sample for group in groups for sample in group], progress)
        finally:  # an error or an interrupt cuts what is left
            self._retire([sample for group in groups for sample in group])
        return [
            RequestOutput(
                group[0].sequence.request.group or group[0].sequence.id,
                text,
                prompt,
                [self.result(sample) for sample in group],
            )
            for text, prompt, group in zip(texts, ids, groups, strict=True)
        ]

    def _drain(self, samples: list[Sample], progress: Progress | None) -> None:
        while (running := next((one for one in samples if one.ended is None), None)) is not None:
            self._step(running)
            if progress is not None:
                done = sum(sample.ended is not None for sample in samples)
                progress("generating", done, len(samples))

    def _step(self, waiting_for: Sample) -> None:
        """One step of the engine, unless another thread's step has just ended the sample."""
        with self._lock:
            if waiting_for.ended is None:
                for sequence in self.engine.step():
                    self._live[sequence.id].mark(time.monotonic())

    def _retire(self, samples: list[Sample]) -> None:
        with self._lock:
            for sample in samples:
                self.engine.abort(sample.sequence)
                sample.mark(time.monotonic())
                self._live.pop(sample.sequence.id, None)

    def _submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        chat_date: str | None,
        form: ReplyForm | None = None,
        handling: Handling = PLAIN_HANDLING,
    ) -> list[Sample]:
        """Queue the n samples of one prompt: all of them, or none and an error."""
        params = params.resolve(self.built.defaults)
        room = self.built.context - len(prompt_ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        texts, ids = split_stops(self.tokenizer, params.stop or ())
        ends = frozenset() if params.ignore_eos else self.built.checkpoint.eos_ids
        with self._lock:
            number = next(self._numbers)
            seed = self._seed(params, number)
            samples: list[Sample] = []
            try:
                for index in range(params.n):
                    stream = text_stream(form, derive(seed, index))(
                        self.tokenizer, prompt_ids, texts, params.skip_special_tokens
                    )
                    request = Request(
                        id=f"{number}-{index}",
                        prompt_ids=tuple(prompt_ids),
                        params=params,
                        seed=derive(seed, index),
                        eos_ids=ends | frozenset(ids),
                        max_tokens=limit,
                        group=str(number),
                        watch=stream.push,
                        salt=handling.salt,
                        priority=handling.priority,
                        deadline=handling.deadline,
                        draft_limit=handling.draft_limit,
                    )
                    sequence = self.engine.add(request)
                    samples.append(Sample(sequence, stream, index, chat_date, time.monotonic()))
            except BaseException:
                for sample in samples:
                    self.engine.abort(sample.sequence)
                raise
            self._live.update((sample.sequence.id, sample) for sample in samples)
        return samples

    def _seed(self, params: SamplingParams, number: int) -> int:
        if params.seed is not None:
            return params.seed
        base = self.built.config.seed
        return fresh_seed() if base is None else request_seed(base, number)


def _params_list(
    params: SamplingParams | SequenceOf[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ConfigError(f"{count} prompts but {len(params)} sampling_params; give one or {count}")
    return list(params)
