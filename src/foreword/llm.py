"""The offline door: `LLM(model).generate(prompts, params)` and `.chat(messages, params)`.

Turns text into requests and sequences back into text; the engine in between sees ids only.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Generator, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import closing
from dataclasses import replace
from threading import Lock
from types import TracebackType
from typing import Any

from foreword import prompts as forms
from foreword.adapters import Loaded
from foreword.beam.outputs import BeamSearchOutput, beam_output
from foreword.beam.params import BeamSearchParams, one_for_each
from foreword.beam.run import Expanding, Searching, run
from foreword.build import Built, Progress, build
from foreword.config import CacheConfig, EngineConfig, SchedulerConfig, read_speculative_config
from foreword.errors import ConfigError, RequestError
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
from foreword.sample.arithmetic import coded
from foreword.sample.checks import check_processors
from foreword.sample.form_rule import request_form
from foreword.sample.noise import derive, fresh_seed, request_seed
from foreword.text.forms import Forms
from foreword.text.stops import split_stops
from foreword.text.stream import TextStream
from foreword.text.template import encode_chat
from foreword.text.words import bad_word_ids, breaker_ids
from foreword.types import Request, SamplingParams

MAX_BREAKERS = 32  # lists of DRY breakers whose ids are kept
Messages = SequenceOf[Mapping[str, Any]]
AdapterNames = str | None | SequenceOf[str | None]  # for all prompts, or for each


class LLM:
    """A model, ready to generate. May be used from several threads, and as a context manager.

    model: a Hugging Face folder, a .gguf file, `org/name`, or a built-in name. speculative_config:
    {"method": ..., "model": ..., "num_speculative_tokens": ..., ...} or None for the default;
    {"method": "none"} is plain decoding. adapters: name -> PEFT folder; requests choose by name.
    Other keywords are EngineConfig's. Raises ConfigError, WeightsError, DownloadError,
    KernelUnavailable.
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
        progress: Progress | None = None,
    ) -> None:
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
        self._breaker_ids: dict[tuple[str, ...], frozenset[int]] = {(): frozenset()}
        self.forms = Forms(self.tokenizer, self.built.vocab_size, self.built.checkpoint.eos_ids)
        self._numbers = itertools.count()
        self._live: dict[
            str, Sample | Expanding
        ] = {}  # by sequence id: whoever steps marks everybody's
        self._lock = Lock()  # held for one step at a time

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        adapter: AdapterNames = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (text or token ids) as one batch; results in the order given.

        sampling_params, adapter (the name of a loaded one, None = the model itself): one for all,
        or one per prompt. A bad prompt raises RequestError before anything runs. A request that
        fails on its own ends with finish_reason "error".
        """
        listed = forms.as_list(prompts)
        ids = [self._encode(prompt, place) for place, prompt in enumerate(listed)]
        texts = [forms.text_of(prompt) for prompt in listed]
        return self._run(texts, ids, sampling_params, None, progress, adapter)

    def chat(
        self,
        messages: Messages | SequenceOf[Messages],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        strict: bool = False,
        date: str | None = None,
        adapter: AdapterNames = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template.

        add_generation_prompt: None = unless the final message is continued. strict: text of
        messages never becomes a control token. date: what a template that asks for the date is
        told, ISO form; default today. It is part of the prompt, and so of the receipt.
        """
        single = bool(messages) and isinstance(messages[0], Mapping)
        talks: list[Any] = [messages] if single else list(messages)
        date = date or datetime.date.today().isoformat()
        options = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "strict": strict,
            "date": date,
        }
        ids = [
            self._encode(self.encode_chat(talk, **options), place)
            for place, talk in enumerate(talks)
        ]
        return self._run([None] * len(ids), ids, sampling_params, date, progress, adapter)

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
        pairs = zip(ids, one_for_each(params, len(ids)), strict=True)
        searches = [Searching.of(self._beam_request(prompt, one), one) for prompt, one in pairs]
        for one in searches:
            self.engine.check(one.base)
        run(searches, self._expand, self._step, self._retire, progress)
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
        for name in ("n", "best_of"):
            if getattr(sampling_params, name) not in (None, 1):
                given = getattr(sampling_params, name)
                raise RequestError(f"a stream has one sample, got {name} = {given}", name)
        ids = self._encode(prompt, 0)
        (sample,) = self._submit(ids, sampling_params, chat_date, adapter)
        try:
            while sample.ended is None:
                self._step(sample)
                yield sample.take(self.tokenizer.shown), sample
            rest = sample.take(self.tokenizer.shown)
            if rest.text or rest.token_ids:  # another caller's step ended it
                yield rest, sample
        finally:
            self._retire([sample])

    def result(self, sample: Sample) -> CompletionOutput:
        """A finished (or cut) sample as the user sees it."""
        receipt = make_receipt(self.built, sample.sequence, sample.chat_date)
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

    def _run(
        self,
        texts: list[str | None],
        ids: list[list[int]],
        params: SamplingParams | SequenceOf[SamplingParams] | None,
        chat_date: str | None,
        progress: Progress | None,
        adapter: AdapterNames = None,
    ) -> list[RequestOutput]:
        each = _params_list(params, len(ids))
        names = _adapter_list(adapter, len(ids))
        groups: list[list[Sample]] = []
        try:
            for prompt, one, name in zip(ids, each, names, strict=True):
                groups.append(self._submit(prompt, one, chat_date, name))
            self._drain([sample for group in groups for sample in group], progress)
        finally:  # an error or an interrupt cuts what is left
            self._retire([sample for group in groups for sample in group])
        return [self.output(group, text) for group, text in zip(groups, texts, strict=True)]

    def _drain(self, samples: list[Sample], progress: Progress | None) -> None:
        while (running := next((one for one in samples if one.ended is None), None)) is not None:
            self._step(running)
            if progress is not None:
                done = sum(sample.ended is not None for sample in samples)
                progress("generating", done, len(samples))

    def _step(self, waiting_for: Sample | Expanding) -> None:
        """One step of the engine, unless another thread's step has just ended the sample."""
        with self._lock:
            if waiting_for.ended is None:
                for sequence in self.engine.step():
                    self._live[sequence.id].mark(time.monotonic())

    def _retire(self, samples: SequenceOf[Sample | Expanding]) -> None:
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
        adapter: str | None = None,
    ) -> list[Sample]:
        """Queue the n samples of one prompt: all of them, or none and an error."""
        params = params.resolve(self.built.defaults)
        room = self.built.context - len(prompt_ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        texts, ids = split_stops(self.tokenizer, params.stop or ())
        bad_words = bad_word_ids(self.tokenizer, params.bad_words or ())
        breakers = self._breakers(params)
        ends = frozenset(ids)
        if not params.ignore_eos:
            ends |= self.built.checkpoint.eos_ids
        shown = params.logprobs
        if params.num_samples > params.n and shown is None:
            params = replace(params, logprobs=0)  # what the best are chosen by
        started = time.monotonic()
        expires = None if params.time_limit is None else started + params.time_limit
        others = replace(params, prompt_logprobs=None) if limit else params  # scored once
        grammar = request_form(self.forms, params, self.built.checkpoint.eos_ids | ids)
        with self._lock:
            chosen = self.built.adapters.find(adapter)
            number = next(self._numbers)
            seed = self._seed(params, number)
            samples: list[Sample] = []
            try:
                for index in range(params.num_samples):
                    stream = TextStream(
                        self.tokenizer,
                        prompt_ids,
                        texts,
                        include_stop=params.include_stop_str_in_output,
                        end_ids=ends | frozenset(params.stop_token_ids or ()),
                        min_tokens=params.min_tokens,
                    )
                    request = Request(
                        id=f"{number}-{index}",
                        prompt_ids=tuple(prompt_ids),
                        params=coded(others if index else params, seed, index),
                        seed=derive(seed, index),
                        eos_ids=ends,
                        max_tokens=limit,
                        group=str(number),
                        watch=stream.push,
                        bad_words=bad_words,
                        dry_breakers=breakers,
                        expires=expires,
                        grammar=grammar,
                        adapter=adapter,
                        adapter_sha256="" if chosen is None else chosen.sha256,
                    )
                    check_processors(request, self.built.vocab_size)
                    sequence = self.engine.add(request)
                    samples.append(Sample(sequence, stream, index, chat_date, started, shown))
            except BaseException:
                for sample in samples:
                    self.engine.abort(sample.sequence)
                raise
            self._live.update((sample.sequence.id, sample) for sample in samples)
        return samples

    def _breakers(self, params: SamplingParams) -> frozenset[int]:
        """Looks at every token's text: the answers are kept, for a few lists of breakers."""
        key = tuple(params.dry_sequence_breakers) if params.dry_multiplier else ()
        if key not in self._breaker_ids:
            if len(self._breaker_ids) >= MAX_BREAKERS:
                self._breaker_ids.clear()
            self._breaker_ids[key] = breaker_ids(self.tokenizer, key)
        return self._breaker_ids[key]

    def _beam_request(self, prompt_ids: list[int], params: BeamSearchParams) -> Request:
        """What a search's requests have in common."""
        room = self.built.context - len(prompt_ids)
        with self._lock:
            number = next(self._numbers)
        return Request(
            id=f"{number}",
            prompt_ids=tuple(prompt_ids),
            params=params.sampling().resolve(self.built.defaults),
            seed=0,
            eos_ids=frozenset() if params.ignore_eos else self.built.checkpoint.eos_ids,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
        )

    def _expand(
        self, request: Request, tokens: tuple[int, ...], arrival: int | None
    ) -> tuple[Expanding, int]:
        with self._lock:
            sequence = self.engine.add(request, tokens, arrival)
            self._live[request.id] = beam = Expanding(sequence)
            return beam, self.engine.parts.scheduler.order(sequence)[1]

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


def _adapter_list(adapter: AdapterNames, count: int) -> list[str | None]:
    if not isinstance(adapter, (list, tuple)):
        return [adapter] * count  # type: ignore[list-item]  # `find` refuses what is no name
    if len(adapter) != count:
        raise ConfigError(f"{count} prompts but {len(adapter)} adapters; give one or {count}")
    return list(adapter)
