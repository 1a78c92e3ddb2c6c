"""Where a cursor starts, how it survives each kind of departure, and what it drafts."""

from __future__ import annotations

import pytest

from drafting import depths_of, new_sequence
from foreword.draft import input_copy
from foreword.draft._context import DraftContext
from foreword.draft.input_copy import GUESS, LONGEST, TRUST
from foreword.errors import ConfigError
from foreword.types import DraftTree, Outcome, Verdict

PROMPT = list(range(100, 140))


def drafter(depth=15, vocab_size=1000, **options):
    return input_copy.make(input_copy.Config(**options), DraftContext(depth, vocab_size))


def after(output, prompt=PROMPT, budget=32, **options):
    made, sequence = drafter(**options), new_sequence("s", prompt, output=output)
    made.begin(sequence)
    return made.propose([sequence], [budget])[0]


def path_from(trie, first):
    """The chain below the root's child `first`, along the first children."""
    tokens, node = (
        [],
        next(n for n, up in enumerate(trie.parents) if up < 0 and trie.tokens[n] == first),
    )
    while node is not None:
        tokens.append(trie.tokens[node])
        node = next((n for n, up in enumerate(trie.parents) if up == node), None)
    return tokens


def test_two_tokens_of_the_prompt_make_a_cursor():
    trie = after([7, 8, 105, 106], budget=5)
    assert trie.tokens == [107, 108, 109, 110, 111]
    assert trie.evidence == [2, 3, 4, 5, 6]
    assert trie.scores == [TRUST[n] for n in range(2, 7)]


def test_one_token_makes_a_cursor_where_two_do_not():
    trie = after([7, 105], budget=2)
    assert trie.tokens == [106, 107]
    assert trie.evidence == [1, 2]


def test_a_replaced_token():
    """110 became 9: the copy goes on with 111, where no suffix matches yet."""
    trie = after([*range(103, 110), 9])
    assert path_from(trie, 111)[:3] == [111, 112, 113]
    assert trie.evidence[trie.tokens.index(111)] == 16


def test_an_inserted_token():
    trie = after([*range(103, 110), 9])
    assert path_from(trie, 110)[:3] == [110, 111, 112]
    assert trie.scores[trie.tokens.index(110)] == pytest.approx((1 - GUESS[0]) * GUESS[1])


def test_several_inserted_tokens():
    trie = after([*range(103, 110), 9, 8, 7])
    assert path_from(trie, 110)[:2] == [110, 111]


def test_skipped_tokens_jump_to_the_next_occurrence():
    trie = after([*range(103, 110), 115])
    assert path_from(trie, 116)[:2] == [116, 117]


def test_the_cursor_that_proves_right_is_first():
    trie = after([*range(103, 110), 9, 111, 112], budget=3)
    assert trie.tokens == [113, 114, 115]
    assert trie.evidence == [2, 3, 4]


def test_a_cursor_wrong_for_too_long_is_given_up():
    output = [*range(103, 110), *[9] * 5]
    assert len(after(output, patience=5)) > 0
    assert len(after(output, patience=4)) == 0


def test_of_equal_places_the_later_one_is_preferred():
    """1 2 occurs twice in the prompt."""
    trie = after([1, 2], prompt=[1, 2, 3, 4, 1, 2, 5, 6, 0], budget=1)
    assert trie.tokens == [5]


def test_the_end_of_the_prompt_ends_the_copy():
    trie = after([137, 138], budget=9)
    assert trie.tokens == [139]
    assert len(after([138, 139], budget=9)) == 0


def test_ids_the_target_cannot_emit_end_the_copy():
    trie = after([105, 106], budget=9, vocab_size=109)
    assert trie.tokens == [107, 108]


def test_depth_and_budget_are_kept():
    trie = after([105, 106], depth=3)
    assert max(depths_of(trie)) == 3
    trie = after([*range(103, 110), 9], budget=4)
    assert len(trie) == 4


def test_step_by_step_equals_at_once():
    output = [*range(103, 110), 9, 111, 112, 8, 113, 120, 121, 5, 5, 5, 122, 139, 101]
    made, grown = drafter(), new_sequence("g", PROMPT)
    made.begin(grown)
    for token in output:
        grown.token_ids.append(token)
        tree = DraftTree.root(token)
        made.observe([Outcome(grown, tree, Verdict((token,), (), 0, False), None)])
        expected = after(grown.output_ids)
        assert made.propose([grown], [32]) == [expected]


def test_long_copies_are_trusted_most():
    trie = after(list(range(100, 125)), budget=4)
    assert trie.scores == [TRUST[LONGEST]] * 4
    assert list(TRUST) == sorted(TRUST)


@pytest.mark.parametrize("name", ["num_cursors", "window", "patience"])
def test_bad_options_are_named(name):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number >= 1"):
        input_copy.Config(**{name: 0})
