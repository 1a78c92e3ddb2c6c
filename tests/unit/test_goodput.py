"""goodput against brute force: no other prefix is worth more, nothing is below plain decoding."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafting import reaches_of
from foreword.tree import bastion, best_first, goodput
from foreword.types import Budget, Trie

SCORES = st.sampled_from([1.0, 0.9, 0.6, 0.5, 0.3, 0.1, 1e-9])


@st.composite
def tries(draw, most=7):
    trie = Trie()
    for _ in range(draw(st.integers(0, most))):
        trie.add(draw(st.integers(-1, len(trie) - 1)), draw(st.integers(0, 5)), draw(SCORES), "a")
    return trie


@st.composite
def priced(draw):
    """A batch on a curve that rises by steps of any height, tiles among them."""
    found = draw(st.lists(tries(), min_size=1, max_size=3))
    total = draw(st.integers(0, 20))
    first = draw(st.floats(1e-3, 1e-2))
    rises = draw(st.lists(st.sampled_from([0.0, 1e-5, 5e-4, 8e-3]), min_size=total, max_size=total))
    costs = list(itertools.accumulate([first, *rises]))
    weights = draw(
        st.lists(st.sampled_from([0.25, 1.0, 2.0]), min_size=len(found), max_size=len(found))
    )
    extra = [draw(st.sampled_from([0.0, 1e-4])) for _ in found]
    limits = [draw(st.integers(0, 8)) for _ in found]
    budget = Budget(total, tuple(limits), costs, extra, weights, draw(st.floats(0.0, 900.0)))
    return [100 + row for row in range(len(found))], found, budget


def worth(trees, found, budget):
    """Weighted tokens expected, seconds."""
    tokens, seconds = sum(budget.weights), 0.0
    for row, (tree, trie) in enumerate(zip(trees, found, strict=True)):
        index = {
            pair: node for node, pair in enumerate(zip(trie.parents, trie.tokens, strict=True))
        }
        nodes = [-1]
        for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
            nodes.append(index[nodes[parent], token])
            tokens += budget.weights[row] * reaches_of(trie)[nodes[-1]]
            seconds += budget.row_costs[row]
    return tokens, seconds + budget.costs[sum(tree.num_drafted for tree in trees)]


@settings(max_examples=150, deadline=None)
@given(batch=priced())
def test_never_below_the_roots_alone(batch):
    roots, found, budget = batch
    trees = goodput.make().build(roots, found, budget)
    assert sum(tree.num_drafted for tree in trees) <= budget.total
    tokens, seconds = worth(trees, found, budget)
    plain = sum(budget.weights) / budget.costs[0]
    assert tokens / seconds >= plain * (1 - 1e-9)


@settings(max_examples=150, deadline=None)
@given(batch=priced())
def test_no_smaller_or_larger_prefix_is_worth_more(batch):
    """Every prefix of the order is what the same builder gives for that many nodes, rows free."""
    roots, found, budget = batch
    rate = max(budget.rate, sum(budget.weights) / budget.costs[0])
    chosen = worth(goodput.make().build(roots, found, budget), found, budget)
    for size in range(budget.total + 1):
        free = Budget(size, budget.per_sequence, weights=budget.weights)
        other = worth(goodput.make().build(roots, found, free), found, budget)
        if budget.rate:
            assert other[0] - rate * other[1] <= chosen[0] - rate * chosen[1] + 1e-9
        else:
            assert other[0] / other[1] <= chosen[0] / chosen[1] * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(batch=priced())
def test_free_rows_and_equal_weights_are_best_first(batch):
    roots, found, budget = batch
    free = Budget(budget.total, budget.per_sequence)
    assert goodput.make().build(roots, found, free) == best_first.make().build(roots, found, free)


@settings(max_examples=60, deadline=None)
@given(batch=priced(), order=st.randoms(use_true_random=False))
def test_permuting_rows_permutes_trees(batch, order):
    roots, found, budget = batch
    rows = list(range(len(roots)))
    order.shuffle(rows)
    moved = Budget(
        budget.total,
        tuple(budget.per_sequence[row] for row in rows),
        budget.costs,
        [budget.row_costs[row] for row in rows],
        [budget.weights[row] for row in rows],
        budget.rate,
    )
    trees = goodput.make().build(roots, found, budget)
    again = goodput.make().build([roots[row] for row in rows], [found[row] for row in rows], moved)
    # Equal candidates at the end of the order may swap between rows; what is expected may not.
    assert worth(again, [found[row] for row in rows], moved) == pytest.approx(
        worth(trees, found, budget), rel=1e-9
    )


def stepped(total):
    """5 ms, 0.01 ms a row, 1 ms more from the 16th row on, and so on."""
    return [1e-3 * (5 + rows // 16) + 1e-5 * rows for rows in range(1, total + 2)]


def sure(depth):
    trie = Trie()
    trie.add_chain(list(range(depth)), [0.97] * depth, "x")
    return trie


def test_a_tile_edge_is_passed_when_the_tile_behind_it_pays():
    """One sequence sure of 40 tokens: the 16th row costs 1 ms more and alone would not pay."""
    budget = Budget(40, (40,), stepped(40))
    [tree] = goodput.make().build([9], [sure(40)], budget)
    [local] = bastion.make().build([9], [sure(40)], budget)
    assert local.num_drafted == 14
    assert tree.num_drafted > 16


def test_speculation_turns_itself_off_and_on():
    """Rows that cost as much as a pass: only what is likely enough is verified."""
    costs = [2e-3 * (1 + rows) for rows in range(4)]
    doubtful, certain = Trie(), Trie()
    doubtful.add_chain([1, 2], [0.6, 0.6], "x")
    certain.add_chain([1, 2], [1.0, 1.0], "x")
    build = goodput.make().build
    assert [tree.num_drafted for tree in build([9], [doubtful], Budget(3, (3,), costs))] == [0]
    cheap = [2e-3 + 1e-4 * rows for rows in range(4)]
    assert [tree.num_drafted for tree in build([9], [doubtful], Budget(3, (3,), cheap))] == [2]
    assert [tree.num_drafted for tree in build([9], [certain], Budget(3, (3,), cheap))] == [2]


def test_a_rate_keeps_a_poor_step_small():
    """What a row may cost depends on what its time would bring elsewhere."""
    trie = Trie()
    trie.add(-1, 1, 0.9, "x")
    trie.add(-1, 2, 0.2, "x")
    costs = [3e-3, 3.4e-3, 3.8e-3]
    build = goodput.make().build
    assert build([9], [trie], Budget(2, (2,), costs))[0].num_drafted == 1
    assert build([9], [trie], Budget(2, (2,), [3e-3, 3.2e-3, 3.4e-3]))[0].num_drafted == 2
    assert build([9], [trie], Budget(2, (2,), costs, rate=1900.0))[0].num_drafted == 1
    assert build([9], [trie], Budget(2, (2,), costs, rate=2400.0))[0].num_drafted == 0


def test_weights_move_nodes_to_the_urgent():
    tries_ = [sure(8), sure(8)]
    budget = Budget(8, (8, 8), [], [], [4.0, 0.25])
    assert [tree.num_drafted for tree in goodput.make().build([1, 2], tries_, budget)] == [8, 0]
