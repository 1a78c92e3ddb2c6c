"""A few persistent threads that share out independent tasks; bits do not depend on how many.

Every task computes one fixed-shape tile on one thread (torch releases the interpreter lock inside
an op), so the number of threads only changes who computes a tile. Knows nothing of what tasks do.

No helper is inside a task when `each` returns or raises, wherever an interrupt strikes the caller:
nothing that the caller does is counted, so nothing can be lost between two of its steps.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from foreword.errors import KernelUnavailable
from foreword.kernels.guard import pin_thread

Item = TypeVar("Item")
_Job = Callable[[], None]
_Jobs = SimpleQueue["_Job | None"]


class Workers:
    """`threads` in total, the caller included. The others are daemons that end with `close`, or
    when nobody holds the object any more."""

    def __init__(self, threads: int) -> None:
        assert threads >= 1
        self.threads = threads
        self._jobs: _Jobs = SimpleQueue()
        self._stop = weakref.finalize(self, _stop, self._jobs, threads - 1)
        if threads == 1:
            return
        host_threads = torch.get_num_threads()
        ready: SimpleQueue[None] = SimpleQueue()
        for _ in range(threads - 1):
            Thread(target=_serve, args=(self._jobs, ready), daemon=True).start()
        for _ in range(threads - 1):
            ready.get()  # each has pinned its own settings
        torch.set_num_threads(host_threads)

    def each(self, task: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Run `task` on every item; returns when all are done; re-raises the first failure.

        Raises KernelUnavailable after `close`.
        """
        self.check_open()
        helpers = min(self.threads, len(items)) - 1
        if helpers <= 0:
            for item in items:
                task(item)
            return
        tickets = itertools.count()

        def share() -> None:
            while (ticket := next(tickets)) < len(items):
                task(items[ticket])

        call = _Call(share)
        failure: BaseException | None = None
        begun = over = False
        while not over:
            try:
                if not begun:
                    begun = True
                    for _ in range(helpers):
                        self._jobs.put(call.help)
                    share()
                call.finish()
                over = True
            except BaseException as error:
                failure = failure or error
        failure = failure or call.failure
        if failure is not None:
            raise failure

    def close(self) -> None:
        self._stop()

    def check_open(self) -> None:
        if not self._stop.alive:
            raise KernelUnavailable("this model is closed; load it again to use it")


class _Call:
    """One `each`. Helpers enter while it is open; its caller closes it and waits till all left.

    Who enters says so before looking whether it is open, and the caller closes it before looking
    who has entered: a helper that the caller does not see finds it closed.
    """

    def __init__(self, share: _Job) -> None:
        self.failure: BaseException | None = None  # a helper's
        self._share = share
        self._open = True
        self._entered: list[None] = []
        self._left: list[None] = []
        self._wake: SimpleQueue[None] = SimpleQueue()

    def help(self) -> None:
        self._entered.append(None)
        try:
            if self._open:
                self._share()
        except BaseException as error:
            self.failure = error
        self._left.append(None)
        self._wake.put(None)

    def finish(self) -> None:
        """May be interrupted anywhere and called again: who left says so before it wakes us, so a
        wake-up that got lost is not missed."""
        self._open = False
        while len(self._left) < len(self._entered):
            self._wake.get()
        self._share = _nothing  # a helper that comes late must not keep the task's tensors alive


def _nothing() -> None:
    return None


def _serve(jobs: _Jobs, ready: SimpleQueue[None]) -> None:
    """A helper's life. Holds the queue and not the `Workers`, so that these can be collected."""
    pin_thread()
    ready.put(None)
    with torch.inference_mode():
        while (job := jobs.get()) is not None:
            job()
            del job


def _stop(jobs: _Jobs, helpers: int) -> None:
    for _ in range(helpers):
        jobs.put(None)
