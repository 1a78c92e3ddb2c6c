"""Sources in order: who is asked, for whom, and what becomes of their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drafting import VOCAB, new_sequence
from foreword.build import assemble_drafter
from foreword.draft import hierarchy
from foreword.draft._context import DraftContext, graft
from foreword.errors import ConfigError
from foreword.types import Trie


class Listed:
    """Answers from a list of (parent, token, score), and notes what it is told."""

    def __init__(self, name, *nodes):
        self.name, self.nodes, self.told = name, nodes, []

    def begin(self, sequence):
        self.told.append(("begin", sequence.id))

    def propose(self, sequences, budget):
        self.told.append(("propose", [one.id for one in sequences], list(budget)))
        tries = []
        for limit in budget:
            trie = Trie()
            for node in self.nodes[:limit]:
                trie.add(*node, self.name, evidence=7)
            tries.append(trie)
        return tries

    def observe(self, outcomes):
        self.told.append(("observe", len(outcomes)))

    def end(self, sequence):
        self.told.append(("end", sequence.id))


def made(first, second, **options):
    options = {"sources": (first.name, second.name), **options}
    context = DraftContext(4, VOCAB)
    given = replace(context, sources={one.name: one for one in (first, second)})
    return hierarchy.make(hierarchy.Config(**options), given), given


A = [new_sequence("a", [1, 2])]


def test_the_second_is_asked_only_for_what_the_first_left_short():
    first, second = Listed("x", (-1, 1, 0.5), (0, 2, 0.5)), Listed("y", (-1, 3, 0.9))
    drafter, _ = made(first, second, num_guesses=2)
    [trie] = drafter.propose(A, [8])
    assert trie.tokens == [1, 2]
    assert second.told == []
    drafter, _ = made(first, second, num_guesses=3)
    [trie] = drafter.propose(A, [8])
    assert trie.tokens == [1, 2, 3]
    assert trie.sources == ["x", "x", "y"]
    assert trie.evidence == [7, 7, 7]


def test_rows_are_asked_for_one_by_one():
    """A row without budget is nobody's business; a full one is not the second's."""
    first, second = Listed("x", (-1, 1, 0.5), (0, 2, 0.5)), Listed("y", (-1, 3, 0.9))
    drafter, _ = made(first, second, num_guesses=12)
    rows = [new_sequence(name, [1]) for name in "abc"]
    tries = drafter.propose(rows, [0, 2, 3])
    assert [trie.tokens for trie in tries] == [[], [1, 2], [1, 2, 3]]
    assert first.told == [("propose", ["b", "c"], [2, 3])]
    assert second.told == [("propose", ["c"], [3])]


def test_a_node_of_both_takes_no_room_and_keeps_the_higher_score():
    first = Listed("x", (-1, 1, 0.2))
    second = Listed("y", (-1, 1, 0.6), (0, 4, 0.9), (-1, 5, 0.5))
    [trie] = made(first, second)[0].propose(A, [2])
    assert (trie.tokens, trie.scores, trie.sources) == ([1, 4], [0.6, 0.9], ["y", "y"])


def test_graft_takes_the_likeliest_and_no_child_without_its_parent():
    trie, other = Trie(), Trie()
    trie.add(-1, 1, 0.5, "x")
    low = other.add(-1, 2, 0.1, "y")
    other.add(low, 3, 1.0, "y")
    high = other.add(-1, 4, 0.9, "y")
    other.add(high, 5, 0.9, "y")
    graft(trie, other, 3)
    assert (trie.tokens, trie.parents) == ([1, 4, 5], [-1, -1, 1])


def test_everything_is_passed_on_and_each_source_is_timed():
    first, second = Listed("x"), Listed("y", (-1, 3, 0.9))
    drafter, context = made(first, second)
    drafter.begin(A[0])
    drafter.propose(A, [4])
    drafter.observe([])
    drafter.end(A[0])
    for one in (first, second):
        assert [told[0] for told in one.told] == ["begin", "propose", "observe", "end"]
    assert context.clock.calls == {"x": 1, "y": 1}
    assert set(context.clock.seconds) == {"x", "y"}


def test_sources_come_from_the_folder_in_the_order_named():
    drafter = assemble_drafter(
        hierarchy, hierarchy.Config(sources=["anpd", "ngram"]), DraftContext(4, VOCAB)
    )
    sequence = new_sequence("a", [1, 2, 3] * 4)
    drafter.begin(sequence)
    [trie] = drafter.propose([sequence], [4])
    assert set(trie.sources) == {"anpd"}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_guesses": 0}, "num_guesses must be a whole number >= 1"),
        ({"sources": ()}, "sources must be a list of drafters"),
        ({"sources": "ngram"}, "sources must be a list of drafters"),
        ({"sources": ("ngram", 3)}, "sources must be a list of drafters"),
        ({"sources": ("ngram", "ngram")}, "names a drafter twice"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        hierarchy.Config(**options)


def test_a_source_that_needs_a_model_that_is_not_there_is_named():
    config = hierarchy.Config(sources=("ngram", "model"))
    with pytest.raises(ConfigError, match=r"was not given model.*--draft-model"):
        assemble_drafter(hierarchy, config, DraftContext(4, VOCAB))
