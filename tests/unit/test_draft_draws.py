"""Drafts that are draws: what the draft model says of them, and that nothing chose among them.

A ratio test is right only if whether a draft is verified does not depend on the draft itself
(protocols.DrawingDrafter): scores must not look at the token, and no two requests may tie.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from drafting import VOCAB, TapeModel, by_model, new_sequence, step, tape_store
from foreword.audit.chi_square import goodness
from foreword.draft import model
from foreword.draft._context import DraftContext
from foreword.protocols import DrawingDrafter
from foreword.sample import sampler
from foreword.tree import best_first, chain, goodput
from foreword.types import Budget, Sequence

SAMPLER = sampler.make()


def drafter(depth: int = 4) -> model.ModelDrafter:
    context = DraftContext(depth, VOCAB, TapeModel(), tape_store(), SAMPLER)
    made = model.make(model.Config(), context)
    assert isinstance(made, DrawingDrafter)
    return made


def drawing(name: str, temperature: float = 1.0) -> Sequence:
    """A sequence whose acceptor wants draws."""
    sequence = new_sequence(name, [1, 2, 3], temperature=temperature)
    sequence.acceptor = SimpleNamespace(draws=True)
    return sequence


def test_a_path_of_draws_with_the_laws_they_came_from():
    made, sequence = drafter(), drawing("a")
    made.begin(sequence)
    (trie,) = made.propose([sequence], [9])
    assert trie.parents == [-1, 0, 1, 2]
    assert sorted(trie.laws) == [0, 1, 2, 3]
    path = list(sequence.token_ids)
    for level, token in enumerate(trie.tokens):
        row = TapeModel().logits(path)
        wanted = SAMPLER.law(row, sequence.request.params, sequence.sampler_state, level)
        assert np.array_equal(trie.laws[level].chances, wanted.chances)
        coin = SAMPLER.coin(sequence.sampler_state, level, 0, since=1)
        assert token == wanted.draw(coin)
        path.append(token)


def test_a_request_without_such_an_acceptor_is_drafted_for_as_ever():
    made, one, other = drafter(), drawing("a"), new_sequence("b", [1, 2, 3], temperature=1.0)
    for sequence in (one, other):
        made.begin(sequence)
    tries = made.propose([one, other], [9, 9])
    assert not tries[1].laws
    assert tries[1].parents.count(-1) == model.Config().num_branches


def test_scores_do_not_look_at_the_draws_and_never_tie():
    """All levels alike, whatever was drawn; every request by a hair its own."""
    made = drafter()
    scores = set()
    for number in range(100):
        sequence = drawing(f"request {number}")
        made.begin(sequence)
        (trie,) = made.propose([sequence], [9])
        assert len(set(trie.scores)) == 1
        scores |= set(trie.scores)
        made.end(sequence)
    assert len(scores) == 100
    assert max(scores) - min(scores) < 2e-6


def test_scores_follow_what_was_accepted():
    fresh, good, bad = (drawing("a") for _ in range(3))
    good.stats.num_accepted, good.stats.num_steps = 80, 20
    bad.stats.num_accepted, bad.stats.num_steps = 0, 20
    assert model.worth(bad) < model.worth(fresh) == pytest.approx(0.8, abs=1e-5)
    assert model.worth(fresh) == pytest.approx(model.worth(good), abs=1e-5)


@pytest.mark.parametrize("builder", [best_first, chain, goodput])
def test_draws_that_are_verified_are_draws_still(builder):
    """Of pairs of requests that compete for one node, those that got it drew as their law says: a
    tie broken by token would keep low ids."""
    made, built = drafter(1), builder.make()
    law, kept = None, []
    for number in range(150):
        pair = [drawing(f"{number}/{side}", temperature=9.0) for side in (0, 1)]
        for sequence in pair:
            made.begin(sequence)
        tries = made.propose(pair, [1, 1])
        budget = Budget(1, (1, 1), costs=(1.0, 1.1), row_costs=(0.0, 0.0), weights=(1.0, 1.0))
        trees = built.build([3, 3], tries, budget)
        assert sum(tree.num_drafted for tree in trees) == 1
        for tree, trie in zip(trees, tries, strict=True):
            kept += tree.tokens[1:]
            carried = tree.with_laws(trie).laws
            assert sorted(carried) == list(range(1, len(tree)))
            law = law or trie.laws[0]
        for sequence in pair:
            made.end(sequence)
    assert law is not None
    counts = np.bincount(kept, minlength=len(law.chances))
    assert goodness(counts, law.chances / law.chances.sum()).p_value > 1e-4


def test_coins_are_fresh_in_each_step():
    """The same output position, drafted for again after a refusal, is drawn anew."""
    made, sequence = drafter(), drawing("a")
    made.begin(sequence)
    seen = []
    for _ in range(3):
        position = sequence.num_output
        seen += [
            SAMPLER.coin(sequence.sampler_state, at, 0, since=position + 1)
            for at in range(position, position + 4)
        ]
        step(made, chain.make(), [sequence], by_model(TapeModel()), 4)
    assert len(set(seen)) == len(seen)
