"""Prompt lookup: which matches are found, in which order, and how they become a trie."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting import depths_of, new_sequence, plain, reaches_of
from foreword.draft import ngram
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError


def drafter(depth=15, vocab_size=1000, **options):
    return ngram.make(ngram.Config(**options), DraftContext(depth, vocab_size))


def draft(history, budget=15, depth=15, **options):
    made, sequence = drafter(depth, **options), new_sequence("s", history)
    made.begin(sequence)
    return made.propose([sequence], [budget])[0]


def best_path(trie):
    """The main chain: from the root to the best child, again and again."""
    node, tokens = -1, []
    while children := [i for i, parent in enumerate(trie.parents) if parent == node]:
        node = max(children, key=lambda i: (trie.scores[i], -i))
        tokens.append(trie.tokens[node])
    return tokens


def test_v10_lookup_without_any_end_token():
    trie = draft([21, 22, 23, 24, 25, 26, 22, 23], prompt_lookup_min=2, prompt_lookup_max=3)
    assert best_path(trie)[:5] == [24, 25, 26, 22, 23]


def test_v10_prompt_of_one_token():
    assert len(draft([5])) == 0


def test_v10_prompt_of_one_repeated_token():
    assert best_path(draft([5] * 9)) == [5] * 15
    assert best_path(draft([5, 5])) == [5] * 15


def test_v10_match_at_the_very_end_follows_nothing():
    """The suffix itself is the only place where 3 occurs: it must not find itself."""
    assert len(draft([1, 2, 3])) == 0


def test_v10_no_match():
    assert len(draft(list(range(50)))) == 0


def test_a_loop_is_followed_past_the_end_of_the_history():
    assert best_path(draft([1, 2, 3, 1, 2])) == [3, 1, 2] * 5


def test_the_longest_match_comes_first_then_the_most_recent():
    #          length 3 -> 50        length 2 -> 60      length 1 -> 70, later than both
    history = [7, 8, 9, 50, 0, 1, 8, 9, 60, 0, 2, 9, 70, 0, 3, 7, 8, 9]
    trie = draft(history, depth=1)
    assert trie.tokens == [50, 60, 70]
    assert trie.scores == sorted(trie.scores, reverse=True)
    recent = draft([8, 9, 50, 0, 1, 8, 9, 60, 0, 2, 8, 9], depth=1)
    assert recent.tokens == [60, 50]


def test_a_match_longer_than_the_longest_n_outranks_a_more_recent_one():
    tail = [1, 2, 3, 4, 5, 6]
    history = [*tail, 50, 0, 9, *tail[2:], 60, 0, 8, *tail]
    assert draft(history, depth=1).tokens == [50, 60]


def test_agreeing_matches_raise_the_score_and_share_the_node():
    one = draft([1, 2, 0, 9, 1], depth=1)
    two = draft([1, 2, 0, 1, 2, 9, 1], depth=1)
    assert one.tokens == two.tokens == [2]
    assert two.scores[0] > one.scores[0]


def test_longer_matches_score_higher_and_reach_falls_along_a_path():
    scores = []
    for size in (1, 2, 3, 4, 8):
        tail = list(range(10, 10 + size))
        scores.append(draft([*tail, 99, 0, *tail], depth=1).scores[0])
    assert scores == sorted(scores)
    assert scores[0] < scores[-1]
    trie = draft([1, 2, 3, 4, 5, 6, 7, 8, 9, 1])
    reaches = reaches_of(trie)
    assert all(parent < 0 or reaches[i] < reaches[parent] for i, parent in enumerate(trie.parents))


def test_alternatives_stand_next_to_the_main_path_best_reach_first():
    history = [1, 2, 3, 4, 0, 1, 2, 5, 6, 0, 1, 2]
    trie = draft(history, budget=5, depth=3)
    assert {trie.tokens[i] for i, parent in enumerate(trie.parents) if parent < 0} == {3, 5}
    whole = draft(history, budget=60, depth=3)
    assert len(whole) > 5
    assert sorted(reaches_of(trie)) == sorted(reaches_of(whole))[-5:]


def test_num_matches_bounds_the_places_followed():
    history = [t for token in range(10, 40) for t in (1, token)] + [1]
    assert len(draft(history, budget=100, depth=1)) == 8
    assert draft(history, depth=1, num_matches=1).tokens == [39]


def test_prompt_lookup_min_is_respected():
    assert len(draft([1, 2, 3, 9, 3], prompt_lookup_min=2)) == 0


def _naive_matches(ids, low, high):
    """Every earlier place where at least `low` ids agree with the suffix: (position, length)."""
    found = []
    for position in range(1, len(ids)):
        length = 0
        while length < min(position, ngram.LONGEST):
            if ids[position - 1 - length] != ids[-1 - length]:
                break
            length += 1
        if length >= low:
            found.append((position, length))
    return sorted(found, key=lambda match: (-match[1], -match[0]))


@settings(max_examples=150, deadline=None)
@given(ids=st.lists(st.integers(0, 2), min_size=1, max_size=40), low=st.integers(1, 3))
def test_the_index_finds_what_a_plain_search_finds(ids, low):
    config = ngram.Config(prompt_lookup_min=low, prompt_lookup_max=4, num_matches=1000)
    index = ngram._Index(ids, config)
    index.extend()
    assert index.matches() == _naive_matches(ids, low, 4)


@settings(max_examples=80, deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), min_size=2, max_size=40),
    cuts=st.sets(st.integers(1, 39)),
    budget=st.integers(0, 30),
)
def test_growing_token_by_token_equals_indexing_at_once(ids, cuts, budget):
    """Whatever the steps were, the index is a function of the history."""
    sequence = new_sequence("s", ids[:1])
    made = drafter()
    made.begin(sequence)
    for cut in sorted(cuts):
        sequence.token_ids.extend(ids[len(sequence.token_ids) : cut])
        made.propose([sequence], [3])
    sequence.token_ids.extend(ids[len(sequence.token_ids) :])
    assert plain(made.propose([sequence], [budget])[0]) == plain(draft(ids, budget))


def test_depth_and_budget_are_limits():
    for budget in range(20):
        trie = draft([1, 2, 3] * 5, budget=budget, depth=4)
        assert len(trie) <= budget
        assert max(depths_of(trie), default=0) <= 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"prompt_lookup_min": 0}, "prompt_lookup_min must be a whole number >= 1"),
        ({"prompt_lookup_max": True}, "prompt_lookup_max must be a whole number >= 1"),
        ({"prompt_lookup_min": 5}, r"prompt_lookup_min \(5\) must not exceed"),
        ({"num_matches": 0}, "num_matches must be a whole number >= 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ngram.Config(**options)


def test_config_is_small_and_documented():
    assert [item.name for item in dataclasses.fields(ngram.Config)] == [
        "prompt_lookup_max",
        "prompt_lookup_min",
        "num_matches",
    ]
