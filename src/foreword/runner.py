"""Samples of what was asked, in one engine: queued, stepped, read, retired.

Whoever waits for a sample steps the engine for everybody; one step at a time, under a lock.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator
from collections.abc import Sequence as SequenceOf
from threading import Lock
from typing import TypeVar

from foreword.asks import Ask, Asks, Prepared
from foreword.beam.params import BeamSearchParams
from foreword.beam.run import Expanding
from foreword.build import Built, Progress
from foreword.chat.reply import ReplyStream
from foreword.outputs import (
    CompletionOutput,
    RequestOutput,
    Sample,
    completion,
    most_likely,
    prompt_table,
    usage,
)
from foreword.receipt import make_receipt
from foreword.types import Request

Part = TypeVar("Part")


class Runner:
    """May be used from several threads."""

    def __init__(self, built: Built) -> None:
        self.built = built
        self.engine = built.engine
        self.tokenizer = built.tokenizer
        self.asks = Asks(built)
        self._numbers = itertools.count()
        self._live: dict[str, Sample | Expanding] = {}  # whoever steps marks everybody's
        self._lock = Lock()  # held for one step at a time

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
                        ask.params.n,
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
        outputs = [self.result(sample) for sample in most_likely(samples)]
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

    def follow(
        self, ask: Ask, take: Callable[[Sample], Part]
    ) -> Generator[tuple[Part, Sample], None, None]:
        """What is new of the one sample of an ask, step by step; closing it aborts the sample."""
        (sample,) = self.submit(ask)
        try:
            while sample.ended is None:
                self.step(sample)
                yield take(sample), sample
            if rest := take(sample):  # another caller's step ended it
                yield rest, sample
        finally:
            self.retire([sample])

    def run(self, asks: list[Ask], progress: Progress | None) -> list[RequestOutput]:
        """All of them to their end as one batch; results in the order given."""
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

    def beam(self, prompt_ids: list[int], params: BeamSearchParams, adapter: str | None) -> Request:
        """What the requests of a search have in common."""
        with self._lock:
            return self.asks.beam(prompt_ids, params, next(self._numbers), adapter)

    def expand(
        self, request: Request, tokens: tuple[int, ...], arrival: int | None
    ) -> tuple[Expanding, int]:
        """Queue a beam of a search; and its place among arrivals."""
        with self._lock:
            sequence = self.engine.add(request, tokens, arrival)
            self._live[request.id] = beam = Expanding(sequence)
            return beam, self.engine.parts.scheduler.order(sequence)[1]
