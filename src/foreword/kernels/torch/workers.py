"""A few persistent threads that share out independent tasks; bits do not depend on how many.

Every task computes one fixed-shape tile on one thread (torch releases the interpreter lock inside
an op), so the number of threads only changes who computes a tile. Knows nothing of what tasks do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

import torch

from foreword.kernels.guard import pin_thread

Item = TypeVar("Item")
_Job = Callable[[], None]


class Workers:
    """`threads` in total, the caller included. Threads are daemons and end with `close`."""

    def __init__(self, threads: int) -> None:
        assert threads >= 1
        self.threads = threads
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._members = [Thread(target=self._serve, daemon=True) for _ in range(threads - 1)]
        if not self._members:
            return
        host_threads = torch.get_num_threads()
        for member in self._members:
            member.start()
        for _ in self._members:
            self._done.get()  # each has pinned its own settings
        torch.set_num_threads(host_threads)

    def each(self, task: Callable[[Item], None], items: Sequence[Item]) -> None:
        """Run `task` on every item; returns when all are done; re-raises the first failure."""
        helpers = min(len(self._members), len(items) - 1)
        if helpers <= 0:
            for item in items:
                task(item)
            return
        tickets = itertools.count()

        def share() -> None:
            while (ticket := next(tickets)) < len(items):
                task(items[ticket])

        for _ in range(helpers):
            self._jobs.put(share)
        failure: BaseException | None = None
        try:
            share()
        except BaseException as error:
            failure = error
        for _ in range(helpers):
            failure = self._done.get() or failure
        if failure is not None:
            raise failure

    def close(self) -> None:
        for _ in self._members:
            self._jobs.put(None)
        self._members = []

    def _serve(self) -> None:
        pin_thread()
        self._done.put(None)
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                try:
                    job()
                    self._done.put(None)
                except BaseException as error:
                    self._done.put(error)
