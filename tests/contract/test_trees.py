"""Promises of every tree builder in the folder, and what each of the two is best at."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foreword.tree
from drafting import depths_of, reaches_of
from foreword.types import Budget, DraftTree, Trie

NAMES = sorted(
    module.name
    for module in pkgutil.iter_modules(foreword.tree.__path__)
    if not module.name.startswith("_")
)
SCORES = st.sampled_from([1.0, 0.9, 0.5, 0.5, 0.25, 1e-9])


def builder(name):
    return importlib.import_module(f"foreword.tree.{name}").make()


@st.composite
def tries(draw, most=12):
    """Any trie: chains, bushes, equal reaches, scores of 1 (a child may equal its parent)."""
    trie = Trie()
    for _ in range(draw(st.integers(0, most))):
        parent = draw(st.integers(-1, len(trie) - 1))
        trie.add(parent, draw(st.integers(0, 5)), draw(SCORES), draw(st.sampled_from("ab")))
    return trie


@st.composite
def batches(draw, rows=5, most=12):
    found = draw(st.lists(tries(most), min_size=0, max_size=rows))
    limits = draw(st.lists(st.integers(0, 8), min_size=len(found), max_size=len(found)))
    roots = draw(st.lists(st.integers(0, 9), min_size=len(found), max_size=len(found)))
    return roots, found, Budget(draw(st.integers(0, 30)), tuple(limits))


def nodes_of(tree: DraftTree, trie: Trie) -> list[int]:
    """The trie's node behind each drafted node of the tree."""
    found = [-1]
    for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
        index = {
            (above, token): node
            for node, (above, token) in enumerate(zip(trie.parents, trie.tokens, strict=True))
        }
        found.append(index[found[parent], token])
    return found[1:]


def expected(taken, found) -> float:
    """Expected accepted tokens: the sum of reach over the batch."""
    return sum(
        reaches_of(trie)[node] for nodes, trie in zip(taken, found, strict=True) for node in nodes
    )


def test_the_folder_lists_its_builders():
    assert {"chain", "best_first"} <= set(NAMES)
    assert [builder(name).name for name in NAMES] == NAMES


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_trees_are_closed_ordered_and_within_budget(name, batch):
    roots, found, budget = batch
    trees = builder(name).build(roots, found, budget)
    assert len(trees) == len(roots)
    assert sum(tree.num_drafted for tree in trees) <= budget.total
    for root, trie, limit, tree in zip(roots, found, budget.per_sequence, trees, strict=True):
        assert (tree.tokens[0], tree.parents[0], tree.sources[0]) == (root, -1, "")
        assert tree.num_drafted <= limit
        assert all(0 <= tree.parents[node] < node for node in range(1, len(tree)))
        siblings = list(zip(tree.parents, tree.tokens, strict=True))
        assert len(set(siblings)) == len(siblings)
        nodes = nodes_of(tree, trie)  # KeyError: not a path of the trie
        assert list(tree.sources[1:]) == [trie.sources[node] for node in nodes]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_building_changes_nothing_and_repeats(name, batch):
    roots, found, budget = batch
    before = [(trie.tokens[:], trie.parents[:], trie.scores[:]) for trie in found]
    assert builder(name).build(roots, found, budget) == builder(name).build(roots, found, budget)
    assert before == [(trie.tokens, trie.parents, trie.scores) for trie in found]


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(batch=batches(), order=st.randoms(use_true_random=False))
def test_permuting_the_rows_permutes_the_trees(name, batch, order):
    """Exactly, where no two rows are told apart by their place alone: here, by distinct roots."""
    _, found, budget = batch
    roots = [100 + row for row in range(len(found))]
    trees = builder(name).build(roots, found, budget)
    rows = list(range(len(roots)))
    order.shuffle(rows)
    moved = Budget(budget.total, tuple(budget.per_sequence[row] for row in rows))
    again = builder(name).build([roots[row] for row in rows], [found[row] for row in rows], moved)
    assert again == [trees[row] for row in rows]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("budget", [Budget(0, (4, 4)), Budget(9, (0, 0))])
def test_no_budget_leaves_the_roots(name, budget):
    trie = Trie()
    trie.add_chain([1, 2], [0.9, 0.9], "x")
    assert builder(name).build([7, 8], [trie, trie], budget) == [
        DraftTree.root(7),
        DraftTree.root(8),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_empty_batch(name):
    assert builder(name).build([], [], Budget(5, ())) == []


@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_best_first_takes_exactly_the_nodes_of_highest_reach(batch):
    """Without per-sequence limits: the reaches taken are the largest ones, as a multiset."""
    roots, found, budget = batch
    budget = Budget(budget.total, (1000,) * len(found))
    trees = builder("best_first").build(roots, found, budget)
    taken = [nodes_of(tree, trie) for tree, trie in zip(trees, found, strict=True)]
    every = sorted((reach for trie in found for reach in reaches_of(trie)), reverse=True)
    got = sorted(
        (reaches_of(found[row])[node] for row, nodes in enumerate(taken) for node in nodes),
        reverse=True,
    )
    assert got == every[: budget.total]


def closed_subsets(trie: Trie, limit: int):
    for size in range(min(limit, len(trie)) + 1):
        for nodes in itertools.combinations(range(len(trie)), size):
            if all(trie.parents[node] in (-1, *nodes) for node in nodes):
                yield nodes


@settings(max_examples=40, deadline=None)
@given(batch=batches(rows=3, most=5), total=st.integers(0, 7))
def test_best_first_is_the_optimum_under_both_limits(batch, total):
    """Brute force over every parent-closed choice."""
    roots, found, budget = batch
    budget = Budget(total, budget.per_sequence)
    choices = [
        list(closed_subsets(trie, limit))
        for trie, limit in zip(found, budget.per_sequence, strict=True)
    ]
    best = max(
        expected(taken, found)
        for taken in itertools.product(*choices)
        if sum(map(len, taken)) <= total
    )
    trees = builder("best_first").build(roots, found, budget)
    taken = [nodes_of(tree, trie) for tree, trie in zip(trees, found, strict=True)]
    assert expected(taken, found) == pytest.approx(best, rel=1e-12, abs=0)


@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_best_first_with_less_budget_is_a_prefix(batch):
    roots, found, budget = batch
    trees = builder("best_first").build(roots, found, budget)
    smaller = Budget(budget.total // 2, budget.per_sequence)
    for tree, less in zip(trees, builder("best_first").build(roots, found, smaller), strict=True):
        assert tree.tokens[: len(less)] == less.tokens
        assert tree.parents[: len(less)] == less.parents


@settings(max_examples=60, deadline=None)
@given(trie=tries(), limit=st.integers(0, 6))
def test_chain_is_the_path_of_largest_expected_length(trie, limit):
    [tree] = builder("chain").build([3], [trie], Budget(100, (limit,)))
    assert tree.parents == tuple(range(-1, tree.num_drafted))
    sums: list[float] = []
    for parent, reach in zip(trie.parents, reaches_of(trie), strict=True):
        sums.append(reach + (sums[parent] if parent >= 0 else 0.0))
    inside = zip(sums, depths_of(trie), strict=True)
    best = max((total for total, depth in inside if depth <= limit), default=0.0)
    assert expected([nodes_of(tree, trie)], [trie]) == pytest.approx(best, rel=1e-12, abs=0)


def test_chain_shortens_all_rows_alike_and_the_unlikely_first():
    tries = []
    for score in (0.5, 0.9, 0.7):
        tries.append(Trie())
        tries[-1].add_chain([1, 2, 3, 4], [score] * 4, "x")
    trees = builder("chain").build([0, 0, 0], tries, Budget(8, (4, 4, 4)))
    assert [tree.num_drafted for tree in trees] == [2, 3, 3]


def test_a_thousand_nodes_in_a_batch_of_64():
    numbers = random.Random(3)
    tries = []
    for _ in range(64):
        trie = Trie()
        for _ in range(60):
            trie.add(numbers.randint(-1, len(trie) - 1), numbers.randint(0, 999), 0.7, "x")
        tries.append(trie)
    for name in NAMES:
        trees = builder(name).build([0] * 64, tries, Budget(1000, (64,) * 64))
        drafted = sum(tree.num_drafted for tree in trees)
        assert drafted == (1000 if name == "best_first" else drafted) <= 1000


def bush(*tokens):
    trie = Trie()
    for token in tokens:
        trie.add(-1, token, 0.5, "x")
    return trie


def test_chain_breaks_ties_by_draft_order_then_token_root_row():
    [tree] = builder("chain").build([0], [bush(9, 4)], Budget(1, (1,)))
    assert tree.tokens == (0, 9)
    trees = builder("chain").build([5, 3, 3], [bush(9), bush(9), bush(9)], Budget(1, (1, 1, 1)))
    assert [tree.num_drafted for tree in trees] == [0, 1, 0]
    trees = builder("chain").build([1, 2], [bush(9), bush(8)], Budget(1, (1, 1)))
    assert [tree.num_drafted for tree in trees] == [0, 1]


def test_best_first_breaks_ties_by_depth_token_root_row():
    deep = Trie()
    deep.add_chain([1, 1], [0.5, 1.0], "x")  # the second node is reached as often as the first
    trees = builder("best_first").build([0, 9], [deep, bush(7)], Budget(2, (9, 9)))
    assert [tree.num_drafted for tree in trees] == [1, 1]
    [tree] = builder("best_first").build([0], [bush(9, 4)], Budget(1, (1,)))
    assert tree.tokens == (0, 4)
    trees = builder("best_first").build([5, 3, 3], [bush(9)] * 3, Budget(1, (1, 1, 1)))
    assert [tree.num_drafted for tree in trees] == [0, 1, 0]
