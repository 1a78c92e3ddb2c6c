"""The thread pool: every item once, failures come back, and nothing is left behind."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter
from types import FrameType
from typing import Any

import pytest
import torch
from rig import CONFIGS, build, ids_of, one_pass

from foreword.errors import KernelUnavailable
from foreword.kernels.guard import flushes_denormals
from foreword.kernels.torch import workers as module
from foreword.kernels.torch.workers import Workers


@pytest.fixture(params=[1, 2, 4])
def workers(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    pool = Workers(request.param)
    yield pool
    pool.close()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_every_item_is_done_once(workers: Workers, count: int) -> None:
    for _ in range(20):
        done: Counter[int] = Counter()
        lock = threading.Lock()

        def task(item: int, done: Counter[int] = done, lock: threading.Lock = lock) -> None:
            with lock:
                done[item] += 1

        workers.each(task, range(count))
        assert done == Counter(range(count))


def test_a_failure_is_raised_and_the_pool_lives_on(workers: Workers) -> None:
    for bad in (0, 5, 39):

        def task(item: int, bad: int = bad) -> None:
            if item == bad:
                raise ValueError(f"item {item}")

        with pytest.raises(ValueError, match=f"item {bad}"):
            workers.each(task, range(40))
        seen: list[int] = []
        workers.each(seen.append, range(40))
        assert sorted(seen) == list(range(40))


@pytest.mark.parametrize("place", ["caller", "helper"])
def test_whoever_fails_the_caller_hears_of_it(place: str) -> None:
    """Every thread takes one item, because none goes on before all have one."""
    pool, barrier = Workers(3), threading.Barrier(3)

    def task(_: int) -> None:
        barrier.wait(10)
        if (threading.current_thread() is threading.main_thread()) == (place == "caller"):
            raise ValueError(place)

    for _ in range(5):
        with pytest.raises(ValueError, match=place):
            pool.each(task, range(3))
    pool.close()


def test_a_failure_of_the_caller_waits_for_the_helpers() -> None:
    """`each` returns when nobody runs a task any more, also when it raises."""
    pool, running = Workers(3), []

    def task(item: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyError(item)
        running.append(item)
        time.sleep(0.02)
        running.remove(item)

    with pytest.raises(KeyError):
        pool.each(task, range(6))
    assert running == []
    pool.close()


def test_close_ends_the_threads_and_may_be_called_twice() -> None:
    before = set(threading.enumerate())
    pool = Workers(4)
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    assert all(thread.daemon for thread in started)
    pool.each(lambda _: None, range(8))
    pool.close()
    pool.close()
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


class Interrupt:
    """A trace function: KeyboardInterrupt before step `at` of the caller's code in workers.py."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


def each_interrupted(pool: Workers, at: int) -> bool:
    """Run 6 items with an interrupt of the caller at a point; False when it came too late."""
    inside: list[int] = []

    def task(item: int) -> None:
        inside.append(item)
        time.sleep(0.0005)
        inside.remove(item)

    interrupt, before = Interrupt(at), sys.gettrace()
    sys.settrace(interrupt)
    try:
        pool.each(task, range(6))
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    assert inside == [], f"point {at}: {inside} still run"
    return interrupt.left < 0


def test_an_interrupt_anywhere_leaves_nobody_inside_and_later_passes_whole() -> None:
    """Before each bytecode of `each`, its share of the items and its wait for the others."""
    pool, at = Workers(3), 0
    while each_interrupted(pool, at):
        for _ in range(2):
            done: list[int | None] = [None] * 8

            def fill(item: int, done: list[int | None] = done) -> None:
                if threading.current_thread() is not threading.main_thread():
                    time.sleep(0.0005)
                done[item] = item

            pool.each(fill, range(8))
            assert done == list(range(8)), f"point {at}"
        at += 1
    pool.close()
    assert at > 100


def test_an_interrupt_while_the_caller_waits_is_raised_when_the_helpers_are_done() -> None:
    pool, main = Workers(2), threading.main_thread()
    helping, running = threading.Event(), []

    def task(item: int) -> None:
        if threading.current_thread() is main:
            assert helping.wait(10)
            return
        running.append(item)
        helping.set()
        time.sleep(0.05)
        running.remove(item)

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_name == "finish" and event == "call":
            sys.settrace(None)
            raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.each(task, range(2))
    finally:
        sys.settrace(before)
    assert running == []
    pool.close()


def test_after_close_nothing_runs() -> None:
    for threads in (1, 3):
        pool = Workers(threads)
        pool.close()
        with pytest.raises(KernelUnavailable, match="closed"):
            pool.each(lambda _: None, range(5))


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_closed_model_says_so(backend: str) -> None:
    model = build(CONFIGS["llama"], backend=backend, threads=2)
    model.kernels.close()
    model.kernels.close()
    with pytest.raises(KernelUnavailable, match="this model is closed"):
        one_pass(model, ids_of(3))
    if backend == "torch":
        with pytest.raises(KernelUnavailable, match="this model is closed"):
            model.kernels.set_threads(2)


def test_a_model_that_nobody_holds_takes_its_threads_along() -> None:
    before = set(threading.enumerate())
    model = build(CONFIGS["llama"], threads=3)
    one_pass(model, ids_of(40))
    started = set(threading.enumerate()) - before
    assert len(started) == 2
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    for thread in started:
        thread.join(10)
        assert not thread.is_alive()


def test_a_job_is_forgotten_when_it_is_done() -> None:
    """What the last task of a pass held is not kept until the next pass."""
    pool = Workers(3)

    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    pool.each(lambda _, held=held: time.sleep(0.001), range(6))  # type: ignore[misc]
    del held
    end = time.monotonic() + 10
    while gone() is not None and time.monotonic() < end:
        time.sleep(0.001)  # a helper that came too late lets go in a moment
    assert gone() is None
    pool.close()


def test_worker_threads_keep_denormals_whatever_their_maker_does() -> None:
    """A new thread inherits the processor's flush-to-zero state on some systems."""
    torch.set_flush_denormal(True)
    try:
        pool = Workers(3)
    finally:
        torch.set_flush_denormal(False)
    main, seen = threading.get_ident(), {}
    barrier = threading.Barrier(3)

    def task(_: int) -> None:
        seen[threading.get_ident()] = (flushes_denormals(), torch.get_num_threads())
        barrier.wait(10)

    pool.each(task, range(3))
    pool.close()
    seen.pop(main)
    assert list(seen.values()) == [(False, 1)] * 2


def test_making_workers_leaves_the_host_its_thread_count() -> None:
    """In a process of its own: torch's thread count is partly per process."""
    program = """
import threading, torch
torch.set_num_threads(3)
from foreword.kernels.torch.workers import Workers
pool = Workers(3)
pool.each(lambda _: None, range(9))
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
thread.start(); thread.join()
print(torch.get_num_threads(), seen[0])
mkl = [x for x in torch.__config__.parallel_info().splitlines() if "mkl_get_max_threads" in x]
assert all(x.split(":")[1].strip() == "3" for x in mkl), mkl
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["3", "3"], done
    assert done.returncode == 0, done.stderr
