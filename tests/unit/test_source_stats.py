"""Who guessed what and how long it took: counts by source, and time that is a source's own."""

from __future__ import annotations

import pytest

from foreword import types
from foreword.types import SourceClock, SpeculationStats


@pytest.fixture
def ticks(monkeypatch):
    """A clock that says what the test wants."""
    now = [0.0]
    monkeypatch.setattr(types, "perf_counter", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def test_time_inside_another_source_is_not_counted_twice(ticks):
    clock = SourceClock()
    with clock.measure("mix"):
        ticks(1)
        with clock.measure("a"):
            ticks(10)
            with clock.measure("b"):
                ticks(100)
        with clock.measure("a"):
            ticks(20)
        ticks(2)
    with clock.measure("mix", calls=0):
        ticks(4)
    assert clock.seconds == {"mix": 7, "a": 30, "b": 100}
    assert clock.calls == {"mix": 1, "a": 2, "b": 1}


def test_a_source_that_fails_is_measured_all_the_same(ticks):
    clock = SourceClock()

    def failing():
        ticks(3)
        raise RuntimeError

    with pytest.raises(RuntimeError), clock.measure("mix"), clock.measure("a"):
        failing()
    with clock.measure("mix"):
        ticks(1)
    assert clock.seconds == {"a": 3, "mix": 1}


def test_nodes_and_tokens_are_credited_to_their_sources():
    stats = SpeculationStats()
    stats.credit(("", "a", "b", "a"), ["a", ""])
    stats.credit(("", "b"), ["b", ""])
    assert stats.drafted_by == {"a": 2, "b": 2}
    assert stats.accepted_by == {"a": 1, "b": 1}
