"""Adaptive n-grams: what is counted, how levels are blended, what a node says of itself."""

from __future__ import annotations

import pytest

from drafting import VOCAB, assert_sound, by_period, depths_of, new_sequence, plain, step
from foreword.draft import anpd
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.tree import chain


def drafter(depth=4, vocab_size=VOCAB, **options):
    return anpd.make(anpd.Config(**options), DraftContext(depth, vocab_size))


def propose(prompt, budget=8, **options):
    made, sequence = drafter(**options), new_sequence("a", prompt)
    made.begin(sequence)
    return made.propose([sequence], [budget])[0]


def test_pairs_alone_give_the_frequencies_with_room_for_the_unseen():
    """After 1 came 2 twice and 3 once: of 3 seen and 2 kinds, shares 2/5 and 1/5."""
    trie = propose([1, 2, 1, 2, 1, 3, 1], depth=1, max_ngram=2)
    assert dict(zip(trie.tokens, trie.scores, strict=True)) == pytest.approx({2: 2 / 5, 3: 1 / 5})
    assert trie.evidence == [1, 1]


def test_a_longer_context_leaves_its_escape_to_the_shorter():
    """After (5, 1) came 3, once: 1/2 of its own. After 1 came 2 and 3: a quarter each of the half
    that is left."""
    trie = propose([9, 1, 2, 5, 1, 3, 5, 1], depth=1, max_ngram=3)
    assert trie.tokens == [3, 2]
    assert trie.scores == pytest.approx([1 / 2 + 1 / 8, 1 / 8])
    assert trie.evidence == [2, 1]


def test_no_context_known_means_no_drafts():
    assert len(propose([1, 2, 3, 4])) == 0
    assert len(propose([7])) == 0


def test_the_most_frequent_path_is_followed_to_the_depth():
    trie = propose([1, 2, 3, 4] * 6, depth=4, budget=4)
    assert trie.tokens == [1, 2, 3, 4]
    assert depths_of(trie) == [1, 2, 3, 4]
    assert trie.evidence == [4, 4, 4, 4]


def test_branches_are_limited_and_equal_ones_keep_the_order_they_were_seen_in():
    prompt = [token for follower in (4, 2, 9, 7) for token in (1, follower)]
    trie = propose([*prompt, 1], depth=1, num_branches=2)
    assert trie.tokens == [4, 2]


def test_a_small_budget_gives_a_part_of_what_a_large_one_does():
    whole = propose([1, 2, 1, 3, 1, 2, 4, 1, 2], budget=64)
    for budget in range(1, len(whole)):
        part = propose([1, 2, 1, 3, 1, 2, 4, 1, 2], budget=budget)
        assert_sound(part, budget, 4, VOCAB)
        assert part.tokens == whole.tokens[:budget]


def test_committed_tokens_are_counted_once():
    """Whether they come one by one or all at once, whoever asks in between."""
    grown = new_sequence("a", [1, 2, 3] * 2, output=())
    made = drafter()
    made.begin(grown)
    for _ in range(5):
        step(made, chain.make(), [grown], by_period(3), 3)
        made.propose([grown], [4])
    fresh = drafter()
    fresh.begin(grown)
    assert plain(made.propose([grown], [16])[0]) == plain(fresh.propose([grown], [16])[0])
    assert grown.stats.mean_acceptance_length > 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_ngram": 0}, "max_ngram must be a whole number >= 1"),
        ({"max_ngram": 1}, "max_ngram must be >= 2"),
        ({"num_branches": 0}, "num_branches must be a whole number >= 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        anpd.Config(**options)
