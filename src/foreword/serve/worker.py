"""The thread that owns the engine: it steps while there is work, and tells who waits what a step
brought.

Everything that touches the engine happens on this thread; others leave orders for it. What one step
brought to all requests crosses to the event loop at once, as one `News` for each of them. Knows no
HTTP and no JSON.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, Queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread

from foreword.asks import Prepared
from foreword.chat.events import Event
from foreword.chat.reply import ReplyStream
from foreword.errors import ForewordError, Overloaded
from foreword.llm import LLM
from foreword.outputs import Delta, Sample

log = logging.getLogger("foreword.serve")


class EngineStopped(ForewordError):
    """The engine met a broken invariant and stopped; nothing can be served until a restart."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is new of one sample. place: prompts in order, of each its samples. events: of a chat.
    ended: this is its last part."""

    place: int
    sample: Sample
    delta: Delta
    events: list[Event]
    ended: bool


@dataclass(frozen=True, slots=True)
class News:
    """What a step brought to one request. done: nothing follows. error: why it ended early."""

    parts: Sequence[Part] = ()
    done: bool = False
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Ticket:
    """One request of a client. stream: parts are wanted as they come; else only the end is told.
    The first news of all says that it was queued."""

    prepared: list[Prepared]
    stream: bool
    news: Queue[News] = field(default_factory=Queue)
    groups: list[list[Sample]] = field(default_factory=list)  # of each prompt its samples
    _told: set[int] = field(default_factory=set)  # places whose last part was given out

    @property
    def samples(self) -> list[Sample]:
        return [sample for group in self.groups for sample in group]

    def read(self, text_of: Callable[[int], str]) -> News | None:
        """What the last step brought; None for nothing."""
        samples = self.samples
        for sample in samples:
            if sample.sequence.error is not None:
                return News(done=True, error=sample.sequence.error)
        done = all(sample.ended is not None for sample in samples)
        parts = self._parts(samples, text_of) if self.stream else ()
        return News(parts, done) if parts or done else None

    def _parts(self, samples: list[Sample], text_of: Callable[[int], str]) -> list[Part]:
        parts = []
        for place, sample in enumerate(samples):
            if place in self._told:
                continue
            delta = sample.take(text_of)
            stream = sample.stream
            events = stream.take_events() if isinstance(stream, ReplyStream) else []
            ended = sample.ended is not None
            if ended:
                self._told.add(place)
            if delta or events or ended:
                parts.append(Part(place, sample, delta, events, ended))
        return parts


class Worker:
    """Runs the tickets of one event loop. `error`: what stopped the engine, if something did."""

    def __init__(self, llm: LLM, loop: AbstractEventLoop) -> None:
        self.error: Exception | None = None
        self._llm = llm
        self._loop = loop
        self._orders: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._open: list[Ticket] = []
        self._thread = Thread(target=self._run, name="foreword-engine", daemon=True)
        self._thread.start()

    @property
    def num_open(self) -> int:
        """Requests that run or wait."""
        return len(self._open)

    def submit(self, ticket: Ticket) -> None:
        """Queue its prompts, all or none."""
        self._orders.put(partial(self._admit, ticket))

    def cancel(self, ticket: Ticket) -> None:
        """Cut it and free what it holds; nothing happens to one that has ended."""
        self._orders.put(partial(self._cancel, ticket))

    def cut(self) -> None:
        """End everything that runs or waits with an error."""
        self._orders.put(partial(self._drop, leaving()))

    def stop(self) -> None:
        """Cut what runs, and end the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        going = True
        while going:
            try:
                going = self._take_orders()
                if going:
                    self._step()
            except Exception as error:  # ours, not a request's: what the engine holds is in doubt
                log.exception("the engine stopped")
                self.error = error
                self._drop(_stopped(error))
        self._drop(leaving())

    def _take_orders(self) -> bool:
        """What others want; waits while there is nothing to do. False: stop."""
        while True:
            try:
                order = self._orders.get(block=not self._open)
            except Empty:
                return True
            if order is None:
                return False
            order()

    def _admit(self, ticket: Ticket) -> None:
        if self.error is not None:
            self._tell([(ticket, News(done=True, error=_stopped(self.error)))])
            return
        try:
            for prepared in ticket.prepared:
                ticket.groups.append(self._llm.enqueue(prepared))
        except Exception as error:
            self._tell([(ticket, News(done=True, error=error))])
            self._llm.retire(ticket.samples)
            return
        self._open.append(ticket)
        self._tell([(ticket, News())])

    def _cancel(self, ticket: Ticket) -> None:
        if ticket in self._open:
            self._open.remove(ticket)
            self._llm.retire(ticket.samples)

    def _step(self) -> None:
        waiting = next(one for ticket in self._open for one in ticket.samples if one.ended is None)
        self._llm.step(waiting)
        told = [(ticket, ticket.read(self._llm.tokenizer.shown)) for ticket in self._open]
        for ticket, news in told:
            if news is not None and news.done:
                self._cancel(ticket)
        self._tell([(ticket, news) for ticket, news in told if news is not None])

    def _drop(self, error: Exception) -> None:
        """End everything that is open with an error."""
        dropped, self._open = self._open, []
        if self.error is None:
            for ticket in dropped:
                self._llm.retire(ticket.samples)
        self._tell([(ticket, News(done=True, error=error)) for ticket in dropped])

    def _tell(self, told: list[tuple[Ticket, News]]) -> None:
        if not told:
            return
        try:
            self._loop.call_soon_threadsafe(_deliver, told)
        except RuntimeError:  # the loop has ended, and with it everyone who waits
            for ticket, _ in told:
                self._cancel(ticket)


def leaving() -> Overloaded:
    """What is told to those who come, or are cut, while the server ends."""
    return Overloaded("the server is shutting down; ask another one")


def _deliver(told: list[tuple[Ticket, News]]) -> None:
    for ticket, news in told:
        ticket.news.put_nowait(news)


def _stopped(error: Exception) -> EngineStopped:
    return EngineStopped(
        f"the engine stopped ({type(error).__name__}); this is a bug of Foreword: see the"
        " server's log, then restart it"
    )
