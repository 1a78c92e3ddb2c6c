"""Whom a sample follows, how branches are weighed, and when what a group wrote is let go."""

from __future__ import annotations

import dataclasses

import pytest

from drafting import depths_of, new_sequence
from foreword.draft import siblings
from foreword.draft._context import DraftContext
from foreword.draft._ways import TRUST
from foreword.types import DraftTree, Outcome, Verdict

PROMPT = [1, 2, 3]


def drafter(depth=15, vocab_size=1000):
    return siblings.make(siblings.Config(), DraftContext(depth, vocab_size))


def sample(name, output=(), group="g", salt=""):
    sequence = new_sequence(name, PROMPT, output=output)
    sequence.request = dataclasses.replace(sequence.request, salt=salt, group=group)
    return sequence


def begun(made, *sequences):
    for sequence in sequences:
        made.begin(sequence)
    return sequences


def committed(made, sequence, tokens):
    sequence.token_ids += tokens
    tree = DraftTree.root(sequence.token_ids[-1])
    made.observe([Outcome(sequence, tree, Verdict(tuple(tokens), (), 0, False), None)])


def drafts(made, sequence, budget=8):
    return made.propose([sequence], [budget])[0]


def test_a_sample_goes_on_as_the_one_that_began_alike():
    made = drafter()
    _, behind = begun(made, sample("a", [5, 6, 7, 8]), sample("b", [5]))
    trie = drafts(made, behind)
    assert trie.tokens == [6, 7, 8]
    assert trie.evidence == [32 + 2, 32 + 3, 32 + 4]  # the prompt's last token counts


def test_at_the_very_start_the_first_tokens_of_the_others_are_guessed():
    made = drafter()
    *_, last = begun(made, *[sample(f"s{n}", [5 + n % 2, 9]) for n in range(3)], sample("t"))
    trie = drafts(made, last)
    ways = {trie.tokens[n]: trie.scores[n] for n, d in enumerate(depths_of(trie)) if d == 1}
    assert ways == {5: pytest.approx(TRUST[1] * 2 / 3), 6: pytest.approx(TRUST[1] / 3)}


def test_after_a_departure_the_last_tokens_lead_back():
    """b wrote 4 where a wrote 5; both wrote 6 7 then."""
    made = drafter()
    _, behind = begun(made, sample("a", [5, 6, 7, 8, 9]), sample("b", [4, 6, 7]))
    trie = drafts(made, behind)
    assert trie.tokens[:2] == [8, 9]
    assert trie.evidence[:2] == [2, 3]


def test_what_a_sibling_commits_is_known_at_once():
    made = drafter()
    ahead, behind = begun(made, sample("a", [5]), sample("b", [5]))
    assert len(drafts(made, behind)) == 0
    committed(made, ahead, [6, 7])
    assert drafts(made, behind).tokens == [6, 7]
    committed(made, behind, [6])
    assert drafts(made, behind).tokens == [7]


@pytest.mark.parametrize("other", [{"group": "h"}, {"salt": "s"}, {"group": None}])
def test_only_samples_of_the_same_group_and_salt_are_followed(other):
    made = drafter()
    _, alone = begun(made, sample("a", [5, 6, 7, 8]), sample("b", [5], **other))
    assert len(drafts(made, alone)) == 0


def test_a_sample_alone_gets_no_drafts_even_from_itself():
    made = drafter()
    [alone] = begun(made, sample("a", [5, 6, 5, 6, 5]))
    assert len(drafts(made, alone)) == 0


def test_a_finished_sibling_is_followed_until_the_last_one_leaves():
    made = drafter()
    done, behind = begun(made, sample("a", [5, 6, 7, 8]), sample("b", [5]))
    made.end(done)
    assert drafts(made, behind).tokens == [6, 7, 8]
    made.end(behind)
    assert not made._groups
    _, late = begun(made, sample("c", [5, 9]), sample("d", [5]))
    assert drafts(made, late).tokens == [9]


def test_a_preempted_sample_that_returns_is_not_counted_twice():
    made = drafter()
    gone, other, third = begun(made, sample("a", [5]), sample("b", [6]), sample("c"))
    before = drafts(made, third)
    made.end(gone)
    made.begin(gone)
    assert drafts(made, third) == before
    assert len(other.output_ids) == 1


def test_ids_the_target_cannot_emit_and_depths_it_cannot_reach_are_left_out():
    made = drafter(depth=2, vocab_size=8)
    _, behind = begun(made, sample("a", [5, 6, 7, 8]), sample("b", [5]))
    assert drafts(made, behind).tokens == [6, 7]
    made = drafter(vocab_size=7)
    _, behind = begun(made, sample("a", [5, 6, 7, 8]), sample("b", [5]))
    assert drafts(made, behind).tokens == [6]
