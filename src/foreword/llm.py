"""The offline door: `LLM(model).generate(prompts, params)` and `.chat(messages, params)`.

Turns text into requests and sequences back into text; the engine in between sees ids only.
"""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

from foreword.build import Built, Progress, build
from foreword.config import CacheConfig, EngineConfig, SchedulerConfig, read_speculative_config
from foreword.errors import ConfigError, RequestError
from foreword.outputs import CompletionOutput, RequestOutput, logprob_table, speculation_metrics
from foreword.receipt import make_receipt
from foreword.sample.noise import derive, fresh_seed
from foreword.text.stops import split_stops
from foreword.text.stream import TextStream
from foreword.text.template import encode_chat
from foreword.types import Request, SamplingParams, Sequence

Prompt = str | SequenceOf[int]
Messages = SequenceOf[Mapping[str, Any]]


@dataclass(slots=True, eq=False)
class Sample:
    """One sequence, its text so far, and when things happened (seconds of a monotonic clock)."""

    sequence: Sequence
    stream: TextStream
    index: int
    chat_date: str | None
    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    ended: float | None = None

    def mark(self) -> None:
        now = time.monotonic()
        if self.first is None and self.sequence.num_output:  # a prefill chunk emits nothing
            self.first = now
        if self.sequence.finish_reason is not None:
            self.stream.finish()
            self.ended = now


class LLM:
    """A model, ready to generate.

    model: a Hugging Face folder, a .gguf file, `org/name`, or a built-in name. speculative_config:
    {"method": ..., "model": ..., "num_speculative_tokens": ..., ...} or None for the default;
    {"method": "none"} is plain decoding. Other keywords are EngineConfig's. Raises ConfigError,
    WeightsError, DownloadError, KernelUnavailable.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_config: Mapping[str, Any] | None = None,
        revision: str | None = None,
        numerics: str = "float32",
        quantization: str | None = None,
        backend: str = "torch",
        isa: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 256,
        kv_cache_memory: int | None = None,
        kv_store: str = "paged",
        block_size: int = 16,
        enable_prefix_caching: bool = True,
        generation_config: str = "auto",
        seed: int | None = None,
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
            cache=CacheConfig(kv_store, block_size, kv_cache_memory, enable_prefix_caching),
            speculative=read_speculative_config(dict(speculative_config or {})),
        )
        self.built: Built = build(config, progress)
        self.engine = self.built.engine
        self.tokenizer = self.built.tokenizer
        self._count = itertools.count()
        self._lock = RLock()

    def generate(
        self,
        prompts: Prompt | SequenceOf[Prompt],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Complete prompts (text or token ids) as one batch; results in the order given.

        sampling_params: one for all, or one per prompt. A bad prompt raises RequestError before
        anything runs. A request that fails on its own ends with finish_reason "error".
        """
        texts = _as_list(prompts)
        ids = [self._encode(prompt, place) for place, prompt in enumerate(texts)]
        named = [prompt if isinstance(prompt, str) else None for prompt in texts]
        return self._run(named, ids, sampling_params, None, progress)

    def chat(
        self,
        messages: Messages | SequenceOf[Messages],
        sampling_params: SamplingParams | SequenceOf[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        strict: bool = False,
        date: str | None = None,
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
        ids = [self.encode_chat(talk, **options) for talk in talks]
        return self._run([None] * len(ids), ids, sampling_params, date, progress)

    def encode_chat(self, messages: Messages, **options: Any) -> list[int]:
        """The prompt ids of a conversation; `options` as in text.template.encode_chat."""
        return encode_chat(self.tokenizer, messages, **options)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams, chat_date: str | None = None
    ) -> Iterator[tuple[str, Sample]]:
        """Yield (new text, sample) after each step of one request; closing it aborts it."""
        with self._lock:
            (sample,) = self._submit(self._encode(prompt, 0), sampling_params, chat_date)
            try:
                while sample.sequence.finish_reason is None:
                    self.engine.step()
                    sample.mark()
                    yield sample.stream.take(), sample
            finally:
                self.engine.abort(sample.sequence)
                sample.mark()

    def result(self, sample: Sample) -> CompletionOutput:
        """A finished (or cut) sample as the user sees it."""
        sequence = sample.sequence
        ended = sample.ended or time.monotonic()
        first = sample.first or ended
        decode = ended - first
        metrics: dict[str, Any] = {
            "time_to_first_token_ms": (first - sample.started) * 1e3,
            "generation_time_ms": (ended - sample.started) * 1e3,
            "tokens_per_second": (sequence.num_output - 1) / decode if decode > 0 else None,
            "speculative_decoding": speculation_metrics(sequence.stats),
        }
        return CompletionOutput(
            index=sample.index,
            text=sample.stream.text,
            token_ids=sequence.output_ids,
            logprobs=logprob_table(sequence, self.tokenizer.token_text),
            finish_reason=sequence.finish_reason,
            seed=sequence.request.seed,
            metrics=metrics,
            receipt=make_receipt(self.built, sequence, sample.chat_date),
            sources=list(sequence.sources),
            error=None if sequence.error is None else str(sequence.error),
        )

    def close(self) -> None:
        """Release worker threads. The object cannot be used afterwards."""
        self.built.close()

    def _encode(self, prompt: Prompt, place: int) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise RequestError(f"prompt {place} is empty; give it at least one token", "prompt")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(f"prompt {place} holds {token!r}, not a token id", "prompt")
            if not 0 <= token < self.built.vocab_size:
                raise RequestError(
                    f"prompt {place} holds token id {token}; the model's ids are 0 to "
                    f"{self.built.vocab_size - 1}",
                    "prompt",
                )
        if len(ids) >= self.built.context:
            raise RequestError(
                f"prompt {place} has {len(ids)} tokens, the context is {self.built.context} and "
                f"needs room for one more; shorten the prompt",
                "prompt",
            )
        return ids

    def _run(
        self,
        texts: list[str | None],
        ids: list[list[int]],
        params: SamplingParams | SequenceOf[SamplingParams] | None,
        chat_date: str | None,
        progress: Progress | None,
    ) -> list[RequestOutput]:
        each = _params_list(params, len(ids))
        groups: list[list[Sample]] = []
        with self._lock:
            try:
                for prompt, one in zip(ids, each, strict=True):
                    groups.append(self._submit(prompt, one, chat_date))
                self._drain([sample for group in groups for sample in group], progress)
            finally:  # an error or an interrupt cuts what is left
                for sample in itertools.chain.from_iterable(groups):
                    self.engine.abort(sample.sequence)
        return [
            RequestOutput(
                group[0].sequence.request.group or group[0].sequence.id,
                text,
                prompt,
                [self.result(sample) for sample in group],
            )
            for text, prompt, group in zip(texts, ids, groups, strict=True)
        ]

    def _submit(
        self, prompt_ids: list[int], params: SamplingParams, chat_date: str | None
    ) -> list[Sample]:
        """Queue the n samples of one prompt."""
        number = next(self._count)
        params = params.resolve(self.built.defaults)
        seed = params.seed
        if seed is None:
            base = self.built.config.seed
            seed = fresh_seed() if base is None else derive(base, number)
        room = self.built.context - len(prompt_ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        return [
            self._sample(
                f"{number}-{index}",
                str(number),
                prompt_ids,
                params,
                derive(seed, index),
                limit,
                index,
                chat_date,
            )
            for index in range(params.n)
        ]

    def _sample(
        self,
        name: str,
        group: str,
        prompt_ids: list[int],
        params: SamplingParams,
        seed: int,
        limit: int,
        index: int,
        chat_date: str | None,
    ) -> Sample:
        texts, ids = split_stops(self.tokenizer, params.stop or ())
        stream = TextStream(self.tokenizer, prompt_ids, texts)
        ends = frozenset() if params.ignore_eos else self.built.checkpoint.eos_ids
        request = Request(
            id=name,
            prompt_ids=tuple(prompt_ids),
            params=params,
            seed=seed,
            eos_ids=ends | frozenset(ids),
            max_tokens=limit,
            group=group,
            watch=stream.push,
        )
        return Sample(self.engine.add(request), stream, index, chat_date)

    def _drain(self, samples: list[Sample], progress: Progress | None) -> None:
        """Step until all are finished."""
        running = {sample.sequence.id: sample for sample in samples}
        while any(sample.ended is None for sample in samples):
            for sequence in self.engine.step():
                running[sequence.id].mark()
            if progress is not None:
                done = sum(sample.ended is not None for sample in samples)
                progress("generating", done, len(samples))


def _as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _params_list(
    params: SamplingParams | SequenceOf[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ConfigError(f"{count} prompts but {len(params)} sampling_params; give one or {count}")
    return list(params)
