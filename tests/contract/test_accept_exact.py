"""The exact acceptor: emits the target's own choices, follows the draft only while it agrees."""

from __future__ import annotations

import numpy as np
import pytest

from foreword.accept import exact
from foreword.types import DraftTree, Verdict

VOCAB = 16
EOS = 9


def chain(*tokens: int) -> DraftTree:
    return DraftTree(
        tokens, tuple(range(-1, len(tokens) - 1)), ("",) + ("scripted",) * (len(tokens) - 1)
    )


def rows_for(choices: list[int]) -> np.ndarray:
    """float32 [nodes, vocab] whose arg-max at node i is choices[i]."""
    rows = np.zeros((len(choices), VOCAB), dtype=np.float32)
    rows[np.arange(len(choices)), choices] = 1.0
    return rows


class Chooser:
    """Greedy choice that records which rows it was shown and ends at EOS or after `limit`."""

    def __init__(self, eos: int | None = None, limit: int = 1000) -> None:
        self.eos, self.limit = eos, limit
        self.shown: list[int] = []

    def __call__(self, row: np.ndarray) -> tuple[int, bool]:
        token = int(row.argmax())
        self.shown.append(token)
        return token, token == self.eos or len(self.shown) == self.limit


def accept(tree: DraftTree, choices: list[int], chooser: Chooser | None = None) -> Verdict:
    return exact.make().accept(tree, rows_for(choices), chooser or Chooser())


def test_name_is_the_file_name() -> None:
    assert exact.make().name == "exact"


def test_a_lone_root_emits_one_token() -> None:
    assert accept(DraftTree.root(5), [3]) == Verdict((3,), (), 0, False)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 8])
def test_v06_mismatch_at_every_index(length: int) -> None:
    """V06: right before index j, wrong at j: exactly j + 1 tokens, the last one the target's choice
    at row j, and the path holds the j accepted drafts; j = length is full acceptance."""
    target = [(3 * i + 1) % VOCAB for i in range(length + 1)]
    for j in range(length + 1):
        drafted = [*target[:j], *((token + 1) % VOCAB for token in target[j:length])]
        verdict = accept(chain(7, *drafted), target)
        assert verdict.tokens == tuple(target[: j + 1])
        assert verdict.path == tuple(range(1, j + 1))
        assert verdict.num_accepted == j
        assert not verdict.finished


def test_choose_sees_only_the_path_in_order() -> None:
    tree = DraftTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 2), ("", "a", "b", "a", "b"))
    chooser = Chooser()
    verdict = accept(tree, [2, 11, 4, 12, 13], chooser)  # root -> node 2 -> node 4 -> bonus 13
    assert verdict == Verdict((2, 4, 13), (2, 4), 2, False)
    assert chooser.shown == [2, 4, 13]


def test_siblings_the_one_that_holds_the_token_is_followed() -> None:
    tree = DraftTree((0, 5, 6, 7), (-1, 0, 0, 0), ("", "a", "a", "a"))
    for node, token in ((1, 5), (2, 6), (3, 7)):
        choices = [token, 10, 11, 12]
        assert accept(tree, choices) == Verdict((token, choices[node]), (node,), 1, False)
    assert accept(tree, [8, 10, 11, 12]) == Verdict((8,), (), 0, False)


def test_an_equal_token_elsewhere_in_the_tree_is_no_child() -> None:
    """Token 6 is a grandchild (node 2) and a child of another branch: neither follows the root."""
    tree = DraftTree((0, 5, 6, 4, 6), (-1, 0, 1, 0, 3), ("", "a", "a", "a", "a"))
    assert accept(tree, [6, 6, 1, 1, 1]) == Verdict((6,), (), 0, False)
    assert accept(tree, [5, 6, 1, 2, 3]) == Verdict((5, 6, 1), (1, 2), 2, False)


def test_a_repeated_token_down_the_path_is_followed_node_by_node() -> None:
    assert accept(chain(3, 3, 3, 3), [3, 3, 3, 3]) == Verdict((3,) * 4, (1, 2, 3), 3, False)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_v19_a_drafted_eos_the_target_rejects_does_not_finish(at: int) -> None:
    """V19: the draft says EOS at index `at`; the target goes on with its own token."""
    target = [1, 2, 3, 4, 5]
    drafted = target[:4]
    drafted[at] = EOS
    verdict = accept(chain(0, *drafted), target, Chooser(eos=EOS))
    assert verdict == Verdict(tuple(target[: at + 1]), tuple(range(1, at + 1)), at, False)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_v20_nothing_follows_an_accepted_eos(at: int) -> None:
    """V20: draft and target agree on EOS at index `at`, and drafts follow it. One EOS, then
    nothing; its node is not on the path (nothing follows it), yet it counts as guessed."""
    target = [1, 2, 3, 4, 5]
    target[at] = EOS
    chooser = Chooser(eos=EOS)
    verdict = accept(chain(0, *target[:4]), target, chooser)
    assert verdict == Verdict(tuple(target[: at + 1]), tuple(range(1, at + 1)), at + 1, True)
    assert chooser.shown == target[: at + 1]


def test_v20_eos_as_the_bonus_token_or_as_a_correction() -> None:
    assert accept(chain(0, 1, 2), [1, 2, EOS], Chooser(eos=EOS)) == Verdict(
        (1, 2, EOS), (1, 2), 2, True
    )
    assert accept(chain(0, 1, 2), [1, EOS, 4], Chooser(eos=EOS)) == Verdict((1, EOS), (1,), 1, True)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_length_limit_inside_the_path_cuts_there(limit: int) -> None:
    target = [1, 2, 3, 4, 5]
    verdict = accept(chain(0, *target[:4]), target, Chooser(limit=limit))
    assert verdict.tokens == tuple(target[:limit])
    assert len(verdict.path) == limit - 1
    assert verdict.finished


def random_tree(rng: np.random.Generator, nodes: int) -> DraftTree:
    tokens, parents, taken = [int(rng.integers(VOCAB))], [-1], set()
    while len(tokens) < nodes:
        parent, token = int(rng.integers(len(tokens))), int(rng.integers(4))
        if (parent, token) in taken:
            if len(taken) >= 4 * len(tokens):
                break
            continue
        taken.add((parent, token))
        tokens.append(token)
        parents.append(parent)
    return DraftTree(tuple(tokens), tuple(parents), ("",) + ("x",) * (len(tokens) - 1))


def test_random_trees_emit_what_plain_decoding_emits() -> None:
    """V01 in small: rows depend on the path from the root, so plain decoding has a definite answer
    after every prefix. Whatever the tree, emitted tokens are its beginning, and the path spells
    all of them but the last."""
    rng = np.random.default_rng(11)

    def target(path: tuple[int, ...]) -> int:
        return (sum(path) * 5 + len(path) * 3) % 4

    for _ in range(500):
        tree = random_tree(rng, int(rng.integers(1, 33)))
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            paths.append((*paths[parent], token) if parent >= 0 else (token,))
        verdict = accept(tree, [target(path) for path in paths])
        plain = [tree.tokens[0]]
        for token in verdict.tokens:
            assert token == target(tuple(plain))
            plain.append(token)
        assert tuple(tree.tokens[node] for node in verdict.path) == verdict.tokens[:-1]
        assert len(verdict.path) == len(verdict.tokens) - 1 == verdict.num_accepted
        last = verdict.path[-1] if verdict.path else 0
        assert tree.child(last, verdict.tokens[-1]) is None
