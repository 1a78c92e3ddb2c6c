"""What each approximate acceptor lets through, against loops written from the papers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from accepting import chooser, drawn, new_sequence, rows_of, step, table, tree_of
from foreword.accept import cascade, reward
from foreword.audit.chi_square import goodness
from foreword.errors import RequestError
from foreword.sample.law import Law, normal
from foreword.types import DraftTree, Trie

VOCAB = 5
TARGET = table(VOCAB, 11, spread=2.0)


def trie_tree(nodes: list[tuple[int, int]], root: int = 0) -> DraftTree:
    trie = Trie()
    for parent, token in nodes:
        trie.add(parent, token, 0.5, "toy")
    return tree_of(root, trie)


def random_tree(rng: np.random.Generator) -> DraftTree:
    trie = Trie()
    for _ in range(12):
        trie.add(int(rng.integers(-1, len(trie))), int(rng.integers(VOCAB)), 0.5, "toy")
    return tree_of(0, trie)


def naive(tree: DraftTree, passes: Any, plain: list[int]) -> list[int]:
    """Walk: of the children that pass the likeliest, else what plain decoding says there (by
    output position)."""
    emitted: list[int] = []
    node: int | None = 0
    while node is not None:
        p = TARGET[tree.tokens[node]]
        below = [tree.tokens[i] for i in range(len(tree)) if tree.parents[i] == node]
        good = [token for token in below if passes(p, token)]
        token = max(good, key=lambda one: p[one]) if good else plain[len(emitted)](node)
        emitted.append(token)
        node = tree.child(node, token)
    return emitted


def plain_choice(
    seed: int, position: int, rows: np.ndarray, fields: dict[str, Any], node: int
) -> int:
    """What plain decoding emits from the row of `node` at an output position."""
    plain = new_sequence("exact", seed, max_tokens=99, **fields)
    plain.token_ids += [0] * position
    token: int = chooser(plain)(rows[node])[0]
    return token


def against_naive(name: str, passes: Any, options: dict[str, Any], **fields: Any) -> float:
    """Compare on random trees; the share of tokens that plain decoding would not have chosen."""
    rng = np.random.default_rng(1)
    other = total = 0
    for seed in range(120):
        tree = random_tree(rng)
        rows = rows_of(tree, TARGET)
        free = new_sequence(name, seed, max_tokens=99, options=options, **fields)
        verdict = step(free, tree, TARGET)

        plain = [
            partial(plain_choice, seed, position, rows, fields) for position in range(len(tree))
        ]
        assert list(verdict.tokens) == naive(tree, passes, plain)
        for choose, node, token in zip(plain, (0, *verdict.path), verdict.tokens, strict=False):
            other += choose(node) != token
        total += len(verdict.tokens)
    return other / total


@pytest.mark.parametrize(("epsilon", "delta"), [(0.09, 0.3), (0.3, 0.6), (1.0, 1.0)])
def test_typical_is_medusa_s_rule(epsilon: float, delta: float):
    """p(x) > min(epsilon, delta * exp(-H(p)))."""

    def passes(p: np.ndarray, token: int) -> bool:
        entropy = -sum(one * math.log(one) for one in p)
        return p[token] > min(epsilon, delta * math.exp(-entropy))

    options = {"epsilon": epsilon, "delta": delta}
    assert against_naive("typical", passes, options) > (0.05 if epsilon < 1 else 0.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("share", "minimum"), [(0.5, 0.1), (0.2, 0.0), (0.9, 0.4)])
def test_conditional_looks_at_the_likeliest(share: float, minimum: float, temperature: float):
    """p(x) >= max(minimum, share * max p); greedy requests have the same p."""

    def passes(p: np.ndarray, token: int) -> bool:
        return p[token] >= max(minimum, share * p.max())

    options = {"share": share, "minimum": minimum}
    against_naive("conditional", passes, options, temperature=temperature)


def test_conditional_with_all_of_the_best_is_greedy():
    """share 1: only the arg-max passes, so nothing differs from plain greedy decoding."""
    other = against_naive(
        "conditional",
        lambda p, token: p[token] >= p.max(),
        {"share": 1.0, "minimum": 0.0},
        temperature=0.0,
    )
    assert other == 0.0


P, Q = normal(np.array([0.6, 0.2, 0.1, 0.1])), normal(np.array([0.1, 0.3, 0.3, 0.3]))


@pytest.mark.parametrize(
    ("rule", "alpha", "who"),
    [
        ("opt", 0.5, "p"),  # .3 < .6 - .5 * .5
        ("opt", 0.7, "q"),  # .3 >= .6 - .7 * .5
        ("diff", 0.2, "p"),
        ("diff", 0.4, "q"),
        ("chow", 0.6, "p"),  # .3 < .4
        ("chow", 0.8, "q"),
    ],
)
def test_cascade_defers_as_the_paper_says(rule: str, alpha: float, who: str):
    """TV(p, q) = .5."""
    found = cascade.mixed(P, Q, cascade.Config(rule, alpha))
    assert found.chances == pytest.approx((P if who == "p" else Q).chances)


def test_cascade_by_token_gives_the_rest_to_the_target():
    """alpha .8: q where p >= .12 (ids 0 and 1), .4 of mass; the other .6 as p."""
    found = cascade.mixed(P, Q, cascade.Config("token", 0.8))
    assert found.chances == pytest.approx([0.1 + 0.36, 0.3 + 0.12, 0.06, 0.06])


def test_cascade_keeps_off_what_the_target_may_not_say():
    masked = normal(np.array([0.5, 0.0, 0.5, 0.0]))
    for rule in cascade.RULES:
        found = cascade.mixed(masked, Q, cascade.Config(rule, 1.0))
        assert found.chances[[1, 3]].tolist() == [0.0, 0.0]
        assert found.chances.sum() == pytest.approx(1.0)
    only = Law(np.array([0.0, 1.0, 0.0, 0.0]))
    assert cascade.mixed(masked, only, cascade.Config("chow", 1.0)) is masked


def test_cascade_draws_from_the_law_between():
    """Draws from q under rule chow with alpha 1 (never defer): the text is the drafter's."""
    drafter = table(VOCAB, 12)
    counts = np.zeros(VOCAB, dtype=np.int64)
    for seed in range(800):
        sequence = new_sequence("cascade", seed, options={"rule": "chow", "alpha": 1.0})
        counts[step(sequence, drawn(sequence, drafter, 1), TARGET).tokens[0]] += 1
    assert goodness(counts, drafter[0]).p_value > 1e-4
    assert goodness(counts, TARGET[0]).p_value < 1e-4


class Scorer:
    """Notes what it is shown; likes steps without a 4."""

    def __init__(self) -> None:
        self.shown: list[tuple[list[int], list[int]]] = []

    def __call__(self, before: list[int], step: list[int]) -> float:
        self.shown.append((before, step))
        return 0.0 if 4 in step else 1.0


def test_reward_keeps_a_step_the_scorer_likes_and_adds_a_token():
    scorer = Scorer()
    sequence = new_sequence("reward", max_tokens=9, options={"scorer": scorer})
    tree = trie_tree([(-1, 3), (0, 2), (-1, 1), (1, 1)])  # first path 3 2 1, another 1
    verdict = step(sequence, tree, TARGET)
    assert scorer.shown == [([0], [3, 2, 1])]
    assert verdict.tokens[:3] == (3, 2, 1)
    assert len(verdict.tokens) == 4


def test_reward_cuts_a_step_after_its_end():
    scorer = Scorer()
    sequence = new_sequence("reward", options={"scorer": scorer, "step_ends": [2]})
    step(sequence, trie_tree([(-1, 3), (0, 2), (1, 4)]), TARGET)
    assert scorer.shown == [([0], [3, 2])]


def test_reward_lets_the_target_write_a_refused_step_to_its_end():
    """Plain decoding's tokens until id 2 has come; only then is the scorer asked again."""
    scorer = Scorer()
    options = {"scorer": scorer, "step_ends": [2]}
    for seed in range(30):
        plain = new_sequence("exact", seed, max_tokens=60)
        while 2 not in plain.output_ids:
            chooser(plain)(rows_of(DraftTree.root(plain.token_ids[-1]), TARGET)[0])
        if plain.num_output > 3:
            break
    sequence = new_sequence("reward", seed, max_tokens=60, options=options)
    for _ in plain.output_ids:
        if 2 in sequence.output_ids:
            break
        step(sequence, trie_tree([(-1, 4)], sequence.token_ids[-1]), TARGET)
    assert len(plain.output_ids) > 1
    written = sequence.output_ids[: len(plain.output_ids)]
    assert written == plain.output_ids
    assert len(scorer.shown) == 1
    step(sequence, trie_tree([(-1, 3)], sequence.token_ids[-1]), TARGET)
    assert len(scorer.shown) == 2


def test_reward_without_ends_asks_again_in_the_next_pass():
    scorer = Scorer()
    sequence = new_sequence("reward", max_tokens=9, options={"scorer": scorer})
    step(sequence, trie_tree([(-1, 4)]), TARGET)
    step(sequence, trie_tree([(-1, 3)], sequence.token_ids[-1]), TARGET)
    assert [shown[1] for shown in scorer.shown] == [[4], [3]]


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (lambda before, step: 1 / 0, "the scorer failed with ZeroDivisionError"),
        (lambda before, step: "good", "finite number, got 'good'"),
        (lambda before, step: float("nan"), "finite number, got nan"),
    ],
)
def test_reward_names_a_scorer_that_fails(scorer: Any, message: str):
    sequence = new_sequence("reward", options={"scorer": scorer})
    with pytest.raises(RequestError, match=message):
        step(sequence, trie_tree([(-1, 1)]), TARGET)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("typical", {"epsilon": 1.5}, "epsilon must be between 0 and 1"),
        ("conditional", {"share": -1}, "share must be between 0 and 1"),
        ("cascade", {"rule": "best"}, "rule must be one of opt, diff, chow, token"),
        ("reward", {}, "needs the option scorer"),
        ("reward", {"scorer": max, "threshold": "high"}, "threshold must be a finite number"),
        ("reward", {"scorer": max, "step_ends": ["x"]}, "step_ends must list token ids"),
        ("ratio", {"alpha": 1}, "unknown option 'alpha'"),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message) as caught:
        new_sequence(name, options=options)
    assert caught.value.parameter == "acceptance_options"


def test_first_step_of_an_empty_tree_is_empty():
    assert reward.first_step(DraftTree.root(1), ()) == {}
