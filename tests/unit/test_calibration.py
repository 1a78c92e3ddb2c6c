"""Calibration: silent before it knows, right once it does, forgetting, and nothing when frozen."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting import new_sequence
from foreword.draft import auto
from foreword.draft._calibration import LEAST, MOST, Calibration
from foreword.draft._context import DraftContext
from foreword.draft._merge import CHOSEN, MIX, Merged
from foreword.types import DraftTree, Trie


def teach(calibration, score, truth, number=2000, seed=0, **place):
    """Guesses of one cell with `score`, right with chance `truth`."""
    where = {"source": "s", "kind": 0, "depth": 1, "evidence": 3} | place
    chance = random.Random(seed)
    for _ in range(number):
        said, cell = calibration.chance(score=score, **where)
        calibration.learn(cell, score, said, chance.random() < truth)
    return calibration.chance(score=score, **where)[0]


@given(score=st.floats(0.01, 0.99), depth=st.integers(1, 40), evidence=st.integers(0, 1000))
def test_nothing_known_nothing_changed(score, depth, evidence):
    assert Calibration().chance("s", 0, depth, evidence, score)[0] == pytest.approx(score)


@pytest.mark.parametrize("score", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("truth", [0.05, 0.4, 0.8])
def test_a_cell_learns_its_rate(score, truth):
    assert teach(Calibration(), score, truth) == pytest.approx(truth, abs=0.07)


def test_a_new_cell_starts_from_what_its_source_is_known_for():
    calibration = Calibration()
    teach(calibration, 0.5, 0.1)
    assert calibration.chance("s", 0, 1, 40, 0.5)[0] == pytest.approx(0.1, abs=0.05)
    assert calibration.chance("s", 1, 1, 40, 0.5)[0] == 0.5  # sampled is another kind
    assert calibration.chance("t", 0, 1, 40, 0.5)[0] == 0.5


def test_evidence_and_depth_are_told_apart():
    calibration = Calibration()
    for turn in range(6):
        teach(calibration, 0.5, 0.9, 500, turn, evidence=9)
        teach(calibration, 0.5, 0.1, 500, turn + 50, evidence=1)
    high, _ = calibration.chance("s", 0, 1, 9, 0.5)
    low, _ = calibration.chance("s", 0, 1, 1, 0.5)
    assert high > 0.75
    assert low < 0.25


def test_what_is_old_fades():
    calibration = Calibration()
    teach(calibration, 0.5, 0.95, 3000)
    assert teach(calibration, 0.5, 0.05, 3000) == pytest.approx(0.05, abs=0.06)


@settings(max_examples=50)
@given(answers=st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), max_size=60))
def test_chances_stay_chances(answers):
    calibration, trust = Calibration(), {}
    for score, right in answers:
        chance, cell = calibration.chance("s", 0, 1, 0, score, trust.get("s", 1.0))
        assert LEAST <= chance <= MOST
        calibration.learn(cell, score, chance, right)
        calibration.adapt(trust, "s", chance, right)


def test_trust_is_the_requests_own():
    calibration, mine, yours = Calibration(), {}, {}
    for _ in range(40):
        chance, _ = calibration.chance("s", 0, 1, 0, 0.5, mine.get("s", 1.0))
        calibration.adapt(mine, "s", chance, False)
    assert calibration.chance("s", 0, 1, 0, 0.5, mine["s"])[0] < 0.3
    assert calibration.chance("s", 0, 1, 0, 0.5, yours.get("s", 1.0))[0] == 0.5


def test_frozen_learns_nothing():
    calibration, trust = Calibration(learning=False), {}
    assert teach(calibration, 0.5, 0.0) == 0.5
    calibration.adapt(trust, "s", 0.5, False)
    assert not trust
    assert not calibration.reliability


def test_reliability_counts_what_was_said_and_what_came():
    calibration = Calibration()
    teach(calibration, 0.5, 0.3, 1500)
    plot = calibration.reliability["s"]
    assert sum(plot.counts) == 1500
    assert sum(plot.right) / 1500 == pytest.approx(0.3, abs=0.04)
    assert plot.error < 0.1


def merged(*tries):
    calibration, found = Calibration(), Merged()
    for number, trie in enumerate(tries):
        found.add(trie, f"owner {number}", 0, calibration, {})
    found.combine(0, calibration, {})
    return found, calibration


def of(source, *nodes):
    trie = Trie()
    for parent, token, score in nodes:
        trie.add(parent, token, score, source)
    return trie


def test_equal_nodes_become_one_and_keep_the_surer_name():
    found, _ = merged(of("a", (-1, 5, 0.4), (0, 6, 0.5)), of("b", (-1, 5, 0.7), (0, 7, 0.2)))
    best = found.best(9)
    assert best.tokens == [5, 6, 7]
    assert best.parents == [-1, 0, 0]
    assert best.sources == ["b", "a", "b"]
    assert best.scores[0] == pytest.approx(0.7)


def test_siblings_are_not_surer_together_than_anything_can_be():
    found, _ = merged(of("a", (-1, 5, 0.9)), of("b", (-1, 6, 0.9)))
    assert sum(found.chances) <= 0.99


def test_every_child_along_the_text_is_an_observation():
    found, calibration = merged(of("a", (-1, 5, 0.6), (-1, 8, 0.2), (0, 6, 0.5), (1, 9, 0.5)))
    tree = DraftTree((1, 5, 9), (-1, 0, 1), ("", "a", "a"))
    found.learn([5, 7], tree, calibration, {})
    assert sum(calibration.reliability["a"].counts) == 3  # 9 hangs on the road not taken
    assert sum(calibration.reliability["a"].right) == 1
    assert sum(calibration.reliability[MIX].counts) == 3
    assert sum(calibration.reliability[CHOSEN].counts) == 1  # the others were not verified


class Useless:
    """A source that takes its time and is never right."""

    name = "useless"

    def __init__(self):
        self.calls = 0

    def begin(self, sequence): ...

    def observe(self, outcomes): ...

    def end(self, sequence): ...

    def propose(self, sequences, budget):
        self.calls += 1
        return [of(self.name, (-1, 39, 0.9)) for _ in sequences]


def test_a_source_that_brings_nothing_is_left_alone_and_tried_again():
    from drafting import by_period, step
    from foreword.tree import best_first

    source = Useless()
    context = DraftContext(4, 40, sources={"useless": source})
    drafter = auto.make(auto.Config(sources=("useless",)), context)
    sequence = new_sequence("s", [1, 2, 3], max_tokens=400)
    drafter.begin(sequence)
    for _ in range(150):
        step(drafter, best_first.make(), [sequence], by_period(3), 4)
    assert auto.TRIAL <= source.calls < 150 - auto.PAUSE
    assert source.calls > auto.TRIAL  # it was tried again
