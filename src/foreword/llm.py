"""The offline door: `LLM(model).generate(prompts, params)` and `.chat(messages, params)`.

Turns text into requests and sequences back into text; the engine in between sees ids only.
"""

from __future__ import annotations

import datetime
from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Any

from foreword import prompts as forms
from foreword.adapters import Loaded
from foreword.asks import PLAIN_HANDLING, Ask, check_single, for_each
from foreword.beam.outputs import BeamSearchOutput, beam_output
from foreword.beam.params import BeamSearchParams
from foreword.beam.run import Searching, run
from foreword.build import Progress, build
from foreword.chat.events import Event
from foreword.chat.prepare import ChatOptions, prepare
from foreword.chat.reply import ReplyStream
from foreword.config import CacheConfig, EngineConfig, SchedulerConfig, read_speculative_config
from foreword.errors import ConfigError
from foreword.outputs import Delta, RequestOutput, Sample
from foreword.prompts import Prompt
from foreword.runner import Runner
from foreword.text.template import encode_chat
from foreword.types import Handling, SamplingParams

Messages = SequenceOf[Mapping[str, Any]]
AdapterNames = str | None | SequenceOf[str | None]  # for all prompts, or for each


class LLM(Runner):
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
        super().__init__(build(config, progress))

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
        return self.run(
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
        return self.run(
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
        adapter: AdapterNames = None,
        chat_date: str | None = None,
        progress: Progress | None = None,
    ) -> list[BeamSearchOutput]:
        """The best outputs of each prompt by beam search, all as one batch, in the order given.

        A bad prompt raises RequestError before anything runs; a search that fails on its own has
        `error` and no outputs. adapter: as in `generate`. chat_date: for receipts, what the
        prompts' template was told."""
        listed = forms.as_list(prompts)
        ids = [self._encode(prompt, place) for place, prompt in enumerate(listed)]
        each = for_each(params, len(ids), "params")
        names = for_each(adapter, len(ids), "adapters")
        searches = [
            Searching.of(self.beam(prompt, one, name), one)
            for prompt, one, name in zip(ids, each, names, strict=True)
        ]
        for one in searches:
            self.engine.check(one.base)
        run(searches, self.expand, self.step, self.retire, progress)
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
        yield from self.follow(ask, lambda sample: sample.take(self.tokenizer.shown))

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

        yield from self.follow(ask, take)

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
