"""Lookahead: where window nodes hang, what is learned from their rows, and how the window moves."""

from __future__ import annotations

import numpy as np
import pytest

from drafting import VOCAB, assert_sound, depths_of, new_sequence, step
from foreword.draft import lookahead
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.tree import best_first
from foreword.types import Budget, DraftTree, Outcome, Trie, Verdict


def drafter(depth=8, vocab_size=VOCAB, learning=True, **options):
    context = DraftContext(depth, vocab_size, learning=learning)
    return lookahead.make(lookahead.Config(**options), context)


def begun(prompt, **options):
    made, sequence = drafter(**options), new_sequence("a", prompt)
    made.begin(sequence)
    return made, sequence


def tree_of(sequence, trie: Trie, size=99) -> DraftTree:
    [tree] = best_first.make().build([sequence.token_ids[-1]], [trie], Budget(size, (size,)))
    return tree


def successor(token):
    """The target of these tests: 3 after 2, 4 after 3, ..., whatever came before."""
    return (token + 1) % VOCAB


def verify(made, sequence, tree):
    """One step of that target over `tree`; returns the tokens emitted."""
    rows = np.zeros((len(tree), VOCAB), dtype=np.float32)
    for node, token in enumerate(tree.tokens):
        rows[node, successor(token)] = 1.0
    node, emitted = 0, []
    while node is not None:
        emitted.append(successor(tree.tokens[node]))
        node = tree.child(node, emitted[-1])
    sequence.token_ids += emitted
    verdict = Verdict(tuple(emitted), tuple(range(len(emitted) - 1)), len(emitted) - 1, False)
    made.observe([Outcome(sequence, tree, verdict, rows)])
    return emitted


def window_paths(trie):
    """For each window node the tokens from the root to it."""
    paths = []
    for node, parent in enumerate(trie.parents):
        paths.append([*(paths[parent] if parent >= 0 else []), trie.tokens[node]])
    return [path for path, known in zip(paths, trie.evidence, strict=True) if known == 0]


def test_columns_hang_below_their_trunk_node_at_the_depth_of_their_position():
    made, sequence = begun([5, 5, 5, 9], window=3, ngram_size=3)
    made._states["a"].columns = [[10, 11], [20, 21], [30]]
    [trie] = made.propose([sequence], [30])
    assert window_paths(trie) == [
        [10],
        [10, 11],
        [10, 20],
        [10, 20, 21],
        [10, 20, 30],
    ]
    assert set(trie.scores) == {lookahead.WINDOW}


def test_the_first_window_is_a_trunk_of_tokens_from_the_history():
    made, sequence = begun(list(range(20)), window=5)
    [trie] = made.propose([sequence], [30])
    assert depths_of(trie) == [1, 2, 3, 4, 5]
    assert set(trie.tokens) <= set(range(20))


def test_a_column_grows_by_the_targets_token_and_then_gives_its_n_gram():
    """Columns (10) and (30, 31) with n-grams of 3: the first becomes (10, 11), the second closes
    (30, 31, 32). One token is emitted, so the full column stays in place and the other leaves."""
    made, sequence = begun([5, 5, 5, 9], window=2, ngram_size=3)
    state = made._states["a"]
    state.columns = [[12], [30, 31]]
    [trie] = made.propose([sequence], [30])
    assert verify(made, sequence, tree_of(sequence, trie)) == [10]
    assert state.pool[30] == [(31, 32)]
    assert state.columns == [[], [31, 32]]


def test_columns_move_left_by_the_tokens_emitted():
    """The trunk is right three times: four tokens are emitted."""
    made, sequence = begun([5, 5, 5, 9], window=7, ngram_size=2)
    state = made._states["a"]
    state.columns = [[10], [11], [12], [33], [34], [35], [36]]
    [trie] = made.propose([sequence], [30])
    assert verify(made, sequence, tree_of(sequence, trie)) == [10, 11, 12, 13]
    assert state.columns == [[34], [35], [36], [37]]
    assert state.pool[33] == [(34,)]


def test_what_was_not_verified_moves_unchanged():
    made, sequence = begun([5, 5, 5, 9], window=3, ngram_size=4)
    state = made._states["a"]
    state.columns = [[20, 21, 22], [30, 31, 32], [2, 3]]
    made.propose([sequence], [30])
    cut = DraftTree((9, 20, 21, 30), (-1, 0, 1, 1), ("", *["lookahead"] * 3))
    verify(made, sequence, cut)
    # (20, 21) was seen and gains 22; of column 30 only its trunk node; the last not at all.
    assert state.columns == [[30, 31], [2, 3]]
    assert 20 not in state.pool


def test_a_step_without_drafts_after_a_gap_in_the_window():
    """A composite did not ask: the empty first column ends the trunk, what is right of it moves."""
    made, sequence = begun([5, 5, 5, 9], window=2, ngram_size=3)
    state = made._states["a"]
    state.columns = [[12], [30, 31]]
    [trie] = made.propose([sequence], [30])
    verify(made, sequence, tree_of(sequence, trie))
    assert state.columns == [[], [31, 32]]
    verify(made, sequence, DraftTree.root(sequence.token_ids[-1]))
    assert state.columns == [[31, 32]]


def test_n_grams_of_the_window_are_drafted_when_their_first_token_comes():
    made, sequence = begun([5, 5, 5, 9], window=3, ngram_size=4)
    made._keep(made._states["a"], (9, 1, 2, 3))
    made._keep(made._states["a"], (3, 4, 6, 7))
    [trie] = made.propose([sequence], [30])
    guessed = [node for node, known in enumerate(trie.evidence) if known]
    assert [trie.tokens[node] for node in guessed] == [1, 2, 3, 4, 6, 7]
    assert [trie.evidence[node] for node in guessed] == [1] * 6


def test_the_pool_keeps_the_most_recent_of_each_token():
    made, _ = begun([1, 2, 1, 3, 1, 4, 1, 2, 9], ngram_size=2, num_guesses=2)
    state = made._states["a"]
    made._extend(state)
    assert state.pool[1] == [(2,), (4,)]


def test_the_window_finds_n_grams_the_history_never_held():
    """A target that counts up from 20; 24 and 30 stand in the prompt, without what follows them.
    The window finds that, and it is accepted when its turn comes."""
    made, sequence = begun([24, 30, 20], window=5, ngram_size=3)
    lengths = []
    for _ in range(12):
        [trie] = made.propose([sequence], [30])
        assert_sound(trie, 30, 8, VOCAB)
        lengths.append(len(verify(made, sequence, tree_of(sequence, trie))))
    assert lengths[0] == 1
    assert max(lengths) >= 3
    blind, alone = begun([24, 30, 20], ngram_size=3, learning=False)
    for _ in range(12):
        [trie] = blind.propose([alone], [30])
        assert len(verify(blind, alone, tree_of(alone, trie))) == 1


def test_frozen_there_is_no_window():
    made, sequence = begun([1, 2, 3] * 4, learning=False)
    for _ in range(4):
        [trie] = made.propose([sequence], [30])
        assert window_paths(trie) == []
        step(made, best_first.make(), [sequence], lambda one, emitted: 7, 30)
    assert made._states["a"].columns == []


@pytest.mark.parametrize("budget", [1, 2, 5, 9])
def test_guesses_leave_half_of_a_small_budget_to_the_window(budget):
    made, sequence = begun([1, 2, 3, 4, 5, 6, 7] * 3, window=9, depth=16)
    [trie] = made.propose([sequence], [budget])
    assert len(trie) == budget
    assert sum(known > 0 for known in trie.evidence) == (budget + 1) // 2


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"window": 0}, "window must be a whole number >= 1"),
        ({"ngram_size": 1}, "ngram_size must be >= 2"),
        ({"num_guesses": 0}, "num_guesses must be a whole number >= 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        lookahead.Config(**options)
