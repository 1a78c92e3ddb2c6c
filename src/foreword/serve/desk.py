"""Between HTTP and the engine's thread: jobs become tickets, and tickets answers.

A ticket is cut as soon as nobody waits for it any more.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence

from foreword.llm import LLM
from foreword.outputs import RequestOutput
from foreword.receipt import short_form
from foreword.serve.convert import Job, Served
from foreword.serve.failures import failure
from foreword.serve.logprobs import TokenNames
from foreword.serve.ready import Ready, make_ready
from foreword.serve.respond import chat_answer, completion_answer
from foreword.serve.responses import ChatCompletion, Completion, Head
from foreword.serve.stream import ChatStream, CompletionStream
from foreword.serve.wire import DONE, event
from foreword.serve.worker import News, Ticket, Worker, leaving


def served_by(llm: LLM, names: Sequence[str] = ()) -> Served:
    """What a server of this model answers for. names: instead of the model's own."""
    models: dict[str, str | None] = dict.fromkeys(names or (llm.built.config.model,))
    models.update((one.name, one.name) for one in llm.built.adapters.loaded)
    options = llm.chat_options
    return Served(
        models,
        llm.tokenizer.chat_template,
        frozenset({"none", llm.engine.parts.drafter.name}),
        options.tool_call_parser,
        options.reasoning_parser,
    )


class Desk:
    """`open`: answers that are being made or sent. `draining`: no new ones are taken."""

    def __init__(self, llm: LLM, served: Served) -> None:
        self.llm, self.served = llm, served
        self.created = int(time.time())
        self.draining = False
        self.open = 0
        self._fingerprint = short_form(llm.built)
        self._worker: Worker | None = None

    def start(self) -> None:
        """Inside the event loop that will serve."""
        self._worker = Worker(self.llm, asyncio.get_running_loop())

    async def stop(self) -> None:
        await asyncio.to_thread(self.worker.stop)

    @property
    def worker(self) -> Worker:
        assert self._worker is not None, "start comes first"
        return self._worker

    def check(self) -> None:
        """Overloaded where nothing new is taken."""
        if self.draining:
            raise leaving()

    async def take(self, job: Job, arrived: float) -> Running:
        """Queue a job. Raises RequestError and others before anything of it has run."""
        ready = await asyncio.to_thread(make_ready, self.llm, job, arrived)
        self.check()
        running = Running(self, ready)
        try:
            await running.next()
        except BaseException:
            running.close()
            raise
        return running

    def head(self, job: Job) -> Head:
        kind = "cmpl" if job.chat is None else "chatcmpl"
        return Head(
            id=job.request_id or f"{kind}-{uuid.uuid4().hex}",
            created=int(time.time()),
            model=job.model,
            system_fingerprint=self._fingerprint,
        )


class Running:
    """A queued job, until `close`, which cuts what has not ended."""

    def __init__(self, desk: Desk, ready: Ready) -> None:
        self._desk, self._ready = desk, ready
        self._head = desk.head(ready.job)
        self._ticket = Ticket(ready.prepared, ready.job.answer.stream)
        self._closed = False
        desk.open += 1
        desk.worker.submit(self._ticket)

    async def next(self) -> News:
        """Raises the error that ended the job."""
        news = await self._ticket.news.get()
        if news.error is not None:
            raise news.error
        return news

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._desk.open -= 1
            self._desk.worker.cancel(self._ticket)

    async def whole(self) -> Completion | ChatCompletion:
        """The answer, when all of it is there."""
        while not (await self.next()).done:
            pass
        return await asyncio.to_thread(self._whole)

    def _whole(self) -> Completion | ChatCompletion:
        llm, job = self._desk.llm, self._ready.job
        names = TokenNames(llm.tokenizer, job.answer.tokens_as_ids)
        results: list[RequestOutput] = [
            llm.output(group, prepared.ask.text)
            for group, prepared in zip(self._ticket.groups, self._ready.prepared, strict=True)
        ]
        if job.chat is not None:
            return chat_answer(self._head, job.answer, results[0], names)
        return completion_answer(self._head, job.answer, results, self._ready.prompts, names)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, those of one step at once. An error is the last one but [DONE]."""
        try:
            kind = CompletionStream if self._ready.job.chat is None else ChatStream
            stream = kind(self._desk.llm, self._ready, self._ticket, self._head)
            if first := stream.begin():
                yield b"".join(map(event, first))
            done = False
            while not done:
                news = await self.next()
                done = news.done
                chunks = [chunk for part in news.parts for chunk in stream.read(part)]
                if done:
                    chunks += stream.end()
                if chunks:
                    yield b"".join(map(event, chunks))
        except Exception as error:
            yield event(failure(error))
        yield DONE
