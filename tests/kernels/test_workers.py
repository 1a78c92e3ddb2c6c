"""The thread pool: every item once, failures come back, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
import torch

from foreword.kernels.guard import flushes_denormals
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


def test_after_close_the_caller_does_the_work() -> None:
    pool = Workers(3)
    pool.close()
    seen: list[int] = []
    pool.each(seen.append, range(5))
    assert seen == [0, 1, 2, 3, 4]


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
