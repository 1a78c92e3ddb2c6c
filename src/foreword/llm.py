"""The offline door: `LLM(model).generate(prompts, params)` and `.chat(messages, params)`.

Turns text into requests and sequences back into text; the engine in between sees ids only.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Any, TypeVar

from foreword import prompts as forms
from foreword.adapters import Loaded
from foreword.asks import PLAIN_HANDLING, Ask, Asks, Prepared, check_single, for_each
from foreword.beam.outputs import BeamSearchOutput, beam_output
from foreword.beam.params import BeamSearchParams
from foreword.beam.run import Expanding, Searching, run
from foreword.build import Built, Progress, build
from foreword.chat.events import Event
from foreword.chat.prepare import ChatOptions, prepare
from foreword.chat.reply import ReplyStream
from foreword.config import CacheConfig, EngineConfig, SchedulerConfig, read_speculative_config
from foreword.errors import ConfigError
from foreword.outputs import (
    CompletionOutput,
    Delta,
    RequestOutput,
    Sample,
    completion,
    most_likely,
    prompt_table,
    usage,
)
from foreword.prompts import Prompt
from foreword.receipt import make_receipt
from foreword.text.template import encode_chat
from foreword.types import Handling, Request, SamplingParams

Messages = SequenceOf[Mapping[str, Any]]
Part = TypeVar("Part")
AdapterNames = str | None | SequenceOf[str | None]  # for all prompts, or for each


class LLM:
    """A model, ready to generate. May be used from several threads, and as a context manager.

    model: a Hugging Face folder, a .gguf file, `org/name`, or a built-in name. speculative_config:
    {"method": ..., "model": ..., "num_speculative_tokens": ..., ...} or None for the default;
    {"method": "none"} is plain decoding. adapters: name -> PEFT folder; requests choose by name.
    tool_call_parser: a file of chat/styles; None = what the chat template teaches.
    reasoning_parser: "think" or "none"; None = by the template. Other keywords are EngineConfig's.
    Raises ConfigError, WeightsError, DownloadError, KernelUnavailable.
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
        adapters: Mapping[str, str] | None = None,
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
            adapters={name: str(folder) for name, folder in (adapters or {}).items()},
        )
        self.built: Built = build(config, progress)
        self.engine = self.built.engine
        self.tokenizer = self.built.tokenizer
        self.asks = Asks(self.built)
        self._numbers = itertools.count()
        self._live: dict[str, Sample | Expanding] = {}  # whoever steps marks everybody's
        self._lock = Lock()  # held for one step at a time

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        adapter: AdapterNames = None,
        handling: Handling = PLAIN_HANDLING,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (text or token ids) as one batch; results in the order given.

        sampling_params, adapter (the name of a loaded one, None = the model itself): one for all,
        or one per prompt. A bad prompt raises RequestError before anything runs. A request that
        fails on its own ends with finish_reason "error". handling: priority, deadline and what is
        shared with others; never the text.
        """
        listed = forms.as_list(prompts)
        ids = [self._encode(prompt, place) for place, prompt in enumerate(listed)]
        each = for_each(sampling_params or SamplingParams(), len(ids), "sampling_params")
        names = for_each(adapter, len(ids), "adapters")
        return self._run(
            [
                Ask(prompt, one, forms.text_of(given), adapter=name, handling=handling)
                for prompt, one, given, name in zip(ids, each, listed, names, strict=True)
            ],
            progress,
        )

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
        adapter: AdapterNames = None,
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
        each = for_each(sampling_params or SamplingParams(), len(talks), "sampling_params")
        chats = [
            prepare(self.tokenizer, talk, params, options)
            for talk, params in zip(talks, each, strict=True)
        ]
        ids = [self._encode(chat.ids, place) for place, chat in enumerate(chats)]
        names = for_each(adapter, len(ids), "adapters")
        return self._run(
            [
                Ask(prompt, one.params, None, date, one.form, name, handling)
                for prompt, one, name in zip(ids, chats, names, strict=True)
            ],
            progress,
        )

    def beam_search(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        params: BeamSearchParams | SequenceOf[BeamSearchParams],
        *,
        chat_date: str | None = None,
        progress: Progress | None = None,
    ) -> list[BeamSearchOutput]:
        """The best outputs of each prompt by beam search, all as one batch, in the order given.

        A bad prompt raises RequestError before anything runs; a search that fails on its own has
        `error` and no outputs. chat_date: for receipts, what the prompts' template was told."""
        listed = forms.as_list(prompts)
        ids = [self._encode(prompt, place) for place, prompt in enumerate(listed)]
        pairs = zip(ids, for_each(params, len(ids), "params"), strict=True)
        searches = [Searching.of(self._beam(prompt, one), one) for prompt, one in pairs]
        for one in searches:
            self.engine.check(one.base)
        run(searches, self._expand, self.step, self.retire, progress)
        texts = [forms.text_of(prompt) for prompt in listed]
        return [
            beam_output(self.built, one, text, chat_date)
            for one, text in zip(searches, texts, strict=True)
        ]

    def encode_chat(self, messages: Messages, **options: Any) -> list[int]:
        """The prompt ids of a conversation; `options` as in text.template.encode_chat."""
        return encode_chat(self.tokenizer, messages, **options)

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        chat_date: str | None = None,
        adapter: str | None = None,
    ) -> Iterator[tuple[str, Sample]]:
        """Yield (new text, sample) as one request goes on; closing the iterator aborts it."""
        with closing(self.deltas(prompt, sampling_params, chat_date, adapter)) as parts:
            for delta, sample in parts:
                yield delta.text, sample

    def deltas(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        chat_date: str | None = None,
        adapter: str | None = None,
    ) -> Generator[tuple[Delta, Sample], None, None]:
        """As `stream`, with the tokens, logprobs and offsets that are new beside the text."""
        check_single(sampling_params)
        ids = self._encode(prompt, 0)
        ask = Ask(ids, sampling_params, chat_date=chat_date, adapter=adapter)
        yield from self._follow(ask, lambda sample: sample.take(self.tokenizer.shown))

    def stream_chat(
        self, messages: Messages, sampling_params: SamplingParams, **options: Any
    ) -> Iterator[tuple[list[Event], Sample]]:
        """As `stream`, for one conversation: what is new of its content, reasoning and tool calls.
        options: as in `chat`."""
        check_single(sampling_params)
        date = options["date"] = options.get("date") or datetime.date.today().isoformat()
        adapter = options.pop("adapter", None)
        asked = replace(self.chat_options, **options)
        chat = prepare(self.tokenizer, messages, sampling_params, asked)
        ids = self._encode(chat.ids, 0)
        ask = Ask(ids, chat.params, chat_date=date, form=chat.form, adapter=adapter)

        def take(sample: Sample) -> list[Event]:
            assert isinstance(sample.stream, ReplyStream)
            return sample.stream.take_events()

        yield from self._follow(ask, take)

    def _follow(
        self, ask: Ask, take: Callable[[Sample], Part]
    ) -> Generator[tuple[Part, Sample], None, None]:
        (sample,) = self.submit(ask)
        try:
            while sample.ended is None:
                self.step(sample)
                yield take(sample), sample
            if rest := take(sample):  # another caller's step ended it
                yield rest, sample
        finally:
            self.retire([sample])

    def submit(self, ask: Ask) -> list[Sample]:
        """Queue the samples of one prompt: all of them, or none and a RequestError."""
        return self.enqueue(self.asks.prepare(ask))

    def enqueue(self, prepared: Prepared) -> list[Sample]:
        """As `submit`, of an ask that was prepared before, maybe by another thread."""
        ask = prepared.ask
        with self._lock:
            samples: list[Sample] = []
            try:
                for request, stream in self.asks.samples(prepared, next(self._numbers)):
                    sequence = self.engine.add(request)
                    sample = Sample(
                        sequence,
                        stream,
                        len(samples),
                        ask.chat_date,
                        prepared.started,
                        prepared.shown,
                    )
                    samples.append(sample)
            except BaseException:
                for sample in samples:
                    self.engine.abort(sample.sequence)
                raise
            self._live.update((sample.sequence.id, sample) for sample in samples)
        return samples

    def step(self, waiting_for: Sample | Expanding) -> None:
        """One step of the engine, unless another thread's step has just ended the sample."""
        with self._lock:
            if waiting_for.ended is None:
                for sequence in self.engine.step():
                    self._live[sequence.id].mark(time.monotonic())

    def retire(self, samples: SequenceOf[Sample | Expanding]) -> None:
        """Forget samples; what has not ended is cut at its last token."""
        with self._lock:
            for sample in samples:
                self.engine.abort(sample.sequence)
                sample.mark(time.monotonic())
                self._live.pop(sample.sequence.id, None)

    def result(self, sample: Sample) -> CompletionOutput:
        """A finished (or cut) sample as the user sees it."""
        receipt = make_receipt(self.built, sample.sequence, sample.chat_date)
        if isinstance(sample.stream, ReplyStream) and sample.stream.enough:
            receipt["ended_by"] = "tool_call"  # plain decoding of the ids alone would go on
        return completion(sample, self.tokenizer.shown, receipt)

    def output(self, samples: list[Sample], text: str | None) -> RequestOutput:
        """All samples of one prompt, finished or cut; `text`: the prompt as it was given."""
        first = samples[0].sequence
        params = first.request.params
        outputs = [self.result(sample) for sample in most_likely(samples, params.n)]
        for place, output in enumerate(outputs):
            output.index = place
        return RequestOutput(
            first.request.group or first.id,
            text,
            list(first.request.prompt_ids),
            outputs,
            prompt_logprobs=prompt_table(first, self.tokenizer.shown),
            usage=usage(samples),
        )

    def load_adapter(self, name: str, folder: str) -> Loaded:
        """A LoRA adapter (a PEFT folder) that requests may name from now on. Raises ConfigError for
        a name that is taken, WeightsError for a folder that does not fit the model."""
        with self._lock:
            return self.built.adapters.load(name, folder)

    def unload_adapter(self, name: str) -> None:
        """Raises ConfigError when it is not loaded, or a request that runs or waits uses it."""
        with self._lock:
            scheduler = self.engine.parts.scheduler
            queued = [*scheduler.running, *scheduler.waiting]
            users = sum(sequence.request.adapter == name for sequence in queued)
            if users:
                raise ConfigError(
                    f"adapter {name!r} is in use by {users} requests; wait for them or abort them"
                )
            self.built.adapters.unload(name)

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

    def _run(self, asks: list[Ask], progress: Progress | None) -> list[RequestOutput]:
        groups: list[list[Sample]] = []
        try:
            for ask in asks:
                groups.append(self.submit(ask))
            self._drain([sample for group in groups for sample in group], progress)
        finally:  # an error or an interrupt cuts what is left
            self.retire([sample for group in groups for sample in group])
        return [self.output(group, ask.text) for group, ask in zip(groups, asks, strict=True)]

    def _drain(self, samples: list[Sample], progress: Progress | None) -> None:
        while (running := next((one for one in samples if one.ended is None), None)) is not None:
            self.step(running)
            if progress is not None:
                done = sum(sample.ended is not None for sample in samples)
                progress("generating", done, len(samples))

    def _beam(self, prompt_ids: list[int], params: BeamSearchParams) -> Request:
        with self._lock:
            number = next(self._numbers)
        return self.asks.beam(prompt_ids, params, number)

    def _expand(
        self, request: Request, tokens: tuple[int, ...], arrival: int | None
    ) -> tuple[Expanding, int]:
        with self._lock:
            sequence = self.engine.add(request, tokens, arrival)
            self._live[request.id] = beam = Expanding(sequence)
            return beam, self.engine.parts.scheduler.order(sequence)[1]
