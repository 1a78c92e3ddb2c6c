"""What auto makes of its sources: who is asked, who gets the credit, who rests."""

from __future__ import annotations

import pytest

from drafting import VOCAB, by_period, new_sequence, step
from foreword.draft import auto
from foreword.draft._context import DraftContext
from foreword.draft.auto import MARGIN, PAUSE, TRIAL, _Source
from foreword.tree import best_first
from foreword.types import Trie


class Parrot:
    """Says what the test told it, under another name than its own; keeps a diary."""

    def __init__(self, name, right=True):
        self.name, self.right, self.diary = name, right, []

    def begin(self, sequence):
        self.diary.append(("begin", sequence.id))

    def propose(self, sequences, budget):
        tries = []
        for sequence, limit in zip(sequences, budget, strict=True):
            trie = Trie()
            if limit:
                ahead = by_period(3)(sequence, sequence.output_ids)
                trie.add(-1, ahead if self.right else (ahead + 1) % VOCAB, 0.9, "someone else")
            tries.append(trie)
        return tries

    def observe(self, outcomes):
        self.diary.append(("observe", len(outcomes)))

    def end(self, sequence):
        self.diary.append(("end", sequence.id))


def made(*sources):
    names = tuple(source.name for source in sources)
    context = DraftContext(4, VOCAB, sources={source.name: source for source in sources})
    return auto.make(auto.Config(sources=names), context)


def test_credit_goes_to_the_drafter_that_was_asked_whatever_its_nodes_are_called():
    drafter, sequence = made(Parrot("right"), Parrot("wrong", right=False)), text()
    drafter.begin(sequence)
    for _ in range(4):
        step(drafter, best_first.make(), [sequence], by_period(3), 4)
    assert drafter._sources["right"].tokens == pytest.approx(1.0)
    assert drafter._sources["wrong"].tokens == 0.0


def test_a_step_without_room_says_nothing_about_a_source():
    drafter, sequence = made(Parrot("right")), text()
    drafter.begin(sequence)
    step(drafter, best_first.make(), [sequence], by_period(3), 4)
    known = drafter._sources["right"].tokens
    step(drafter, best_first.make(), [sequence], by_period(3), 0)
    assert drafter._sources["right"].tokens == known == 1.0


def test_a_finished_request_reaches_a_resting_source():
    source, sequence = Parrot("right"), text()
    drafter = made(source)
    drafter.begin(sequence)
    drafter._sources["right"].resting = 5
    source.diary.clear()
    drafter.end(sequence)  # preempted: it will come back
    assert source.diary == []
    drafter.begin(sequence)
    sequence.finish_reason = "stop"
    drafter.end(sequence)
    assert source.diary == [("begin", sequence.id), ("end", sequence.id)]


@pytest.mark.parametrize(("seconds", "rests"), [(1.0, True), (1e-4, False)])
def test_a_source_is_judged_once_it_could_have_paid(seconds, rests):
    source = _Source(Parrot("silent"), seconds=seconds, asked=TRIAL)
    source.judge(token_seconds=2.0 * TRIAL * MARGIN * 1e-4)
    assert source.resting == (PAUSE if rests else 0)


def text():
    return new_sequence("s", [1, 2, 3, 1, 2], max_tokens=100)
