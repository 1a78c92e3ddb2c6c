"""The opt-in ratio tests (`ratio`, `block`) emit the target's distribution, whatever drafts.

Enumerated where the coins can be, else by chi-square: every test rejects below 1e-4, with fixed
seeds, so a pass is a pass for ever. `accepting.py` is the toy world.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from accepting import (
    SAMPLER,
    chooser,
    drawn,
    logits,
    new_sequence,
    rows_of,
    step,
    table,
    tree_of,
    write,
)
from foreword.accept import _ratio, block
from foreword.audit.chi_square import goodness
from foreword.sample.law import Law, distance, normal
from foreword.types import Sequence, Trie

FALSE_ALARM = 1e-4
QUICK, FULL = 1_200, 50_000
BUGS = ((0.321, 0.390, 0.290), (0.455, 0.303, 0.242))  # V03: re-softmaxed; V05: drawn again


def law(*chances: float) -> Law:
    return normal(np.array(chances))


def p_value(tokens: Any, chances: Any) -> float:
    chances = np.asarray(chances, dtype=np.float64)
    counts = np.bincount(np.asarray(tokens), minlength=len(chances))
    return goodness(counts, chances / chances.sum()).p_value


def enumerated(p: Law, q: Law, coins: int = 10) -> np.ndarray:
    """The law of `settle` over every draft and every pair of coins from a grid; exact where the
    thresholds are tenths."""
    grid = [(i + 0.5) / coins for i in range(coins)]
    found = np.zeros(len(p.chances))
    for drafted, keep, rest in product(range(len(found)), grid, grid):
        token = _ratio.settle(p, [drafted], {0: q}, lambda number, c=(rest, keep): c[number])
        found[token] += q.of(drafted) / coins**2
    return found


def test_v03_the_marginal_is_p_by_enumeration():
    """V03: p = (.5, .3, .2), q = (.2, .3, .5): accepts .7, and a refusal always gives token 0."""
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.3, 0.5)
    assert enumerated(p, q) == pytest.approx(p.chances, abs=1e-12)
    assert _ratio.residual(p, q).chances.tolist() == [1.0, 0.0, 0.0]


def test_v03_a_residual_softmaxed_again_is_seen(monkeypatch: pytest.MonkeyPatch):
    """V03: the planted bug of transformers #28508 gives the marginal that the case names."""
    p, q = law(0.5, 0.3, 0.2), law(0.2, 0.3, 0.5)
    monkeypatch.setattr(
        _ratio, "residual", lambda p, q: normal(np.exp(np.maximum(p.chances - q.chances, 0.0)))
    )
    assert enumerated(p, q, 100) == pytest.approx(BUGS[0], abs=0.004)


def test_point_masses_in_any_number_leave_the_marginal():
    """Two siblings nobody drew, one after the other: the marginal is p, by enumeration; all
    thresholds are twelfths."""
    p = law(0.5, 0.25, 0.25)
    grid = [(i + 0.5) / 12 for i in range(12)]
    for siblings in ((0, 1), (1, 0), (1, 2), (2, 0)):
        found = np.zeros(3)
        for keep in product(grid, repeat=2):
            token = _ratio.settle(p, list(siblings), {}, lambda number, c=(0.5, *keep): c[number])
            found[token] += 1 / 144
        assert found == pytest.approx(p.chances, abs=1e-12)


@pytest.mark.parametrize("count", [4_000, pytest.param(4 * FULL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["ratio", "block"])
def test_v03_v05_the_marginal_is_p_by_sampling(name: str, count: int):
    """V03, V05: the acceptor with its own coins; both known bugs would be seen."""
    p = np.array([[0.5, 0.3, 0.2]] * 3)
    q = np.array([[0.2, 0.3, 0.5]] * 3)
    tokens = []
    for seed in range(count):
        sequence = new_sequence(name, seed)
        tokens.append(step(sequence, drawn(sequence, q, 1), p).tokens[0])
    assert p_value(tokens, p[0]) > FALSE_ALARM
    for bug in BUGS:
        assert p_value(tokens, bug) < FALSE_ALARM


def first_tokens(draft: str, p: Any, q: Any, count: int, **fields: Any) -> list[int]:
    """Of `count` requests whose only draft is the arg-max of q, a draw from it, or its best under
    the noise that plain decoding of the target would use."""
    target, drafter = np.array([p] * len(p)), np.array([q] * len(q))
    tokens = []
    for seed in range(count):
        sequence = new_sequence("ratio", seed, **fields)
        if draft == "sampled":
            tree = drawn(sequence, drafter, 1)
        else:
            trie = Trie()
            trie.add(-1, greedy(q) if draft == "greedy" else noisy(sequence, q), 0.5, "toy")
            tree = tree_of(0, trie)
        tokens.append(step(sequence, tree, target).tokens[0])
    return tokens


def greedy(q: Any) -> int:
    return int(np.argmax(q))


def noisy(sequence: Sequence, q: Any) -> int:
    params, state = sequence.request.params, sequence.sampler_state
    return SAMPLER.rank(logits(q), params, state, 0, 1)[0][0]


@pytest.mark.parametrize("count", [QUICK, pytest.param(FULL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("draft", ["greedy", "sampled", "shared noise"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
def test_v04_each_way_of_drafting_gives_p(draft: str, temperature: float, count: int):
    """V04: p = (.3, .5, .2), q = (.2, .5, .3); q is what drafts were really drawn from, a point
    mass where they were not. The bug of the case keeps token 1 always."""
    p, q = (0.3, 0.5, 0.2), (0.2, 0.5, 0.3)
    tokens = first_tokens(draft, p, q, count, temperature=temperature)
    assert p_value(tokens, np.array(p) ** (1 / temperature)) > FALSE_ALARM


@pytest.mark.parametrize("count", [QUICK, pytest.param(FULL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("fields", [{"top_k": 3}, {"top_p": 0.85}, {"min_p": 0.25}])
def test_v04_marginal_with_filters(fields: dict[str, Any], count: int):
    """V04: of p = (.4, .3, .2, .06, .04) each filter keeps the first three; q is filtered too."""
    p, q = (0.4, 0.3, 0.2, 0.06, 0.04), (0.1, 0.2, 0.3, 0.3, 0.1)
    tokens = first_tokens("sampled", p, q, count, **fields)
    assert max(tokens) < 3
    assert p_value(tokens, (0.4, 0.3, 0.2)) > FALSE_ALARM


def test_v05_three_hundred_seeds_give_more_than_one_first_token():
    """V05: no arg-max in disguise."""
    for name in ("ratio", "block"):
        tokens = set()
        for seed in range(300):
            sequence = new_sequence(name, seed)
            tokens |= {step(sequence, drawn(sequence, table(3, 2), 1), table(3, 1)).tokens[0]}
        assert tokens == {0, 1, 2}


@pytest.mark.parametrize("count", [QUICK, pytest.param(FULL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["ratio", "block"])
def test_whole_texts_have_the_target_s_joint_law(name: str, count: int):
    """Four tokens over passes with drafts of two, drawn anew for each: 16 outcomes of two letters,
    whose chances are products along the text. Coins used twice would show here."""
    target, drafter = table(2, 3), table(2, 4, spread=1.5)
    chances = np.zeros(16)
    for number, text in enumerate(product(range(2), repeat=4)):
        chances[number] = math.prod(target[a][b] for a, b in zip((0, *text), text, strict=False))
    found = []
    for seed in range(count):
        text = write(new_sequence(name, seed), target, drafter, 2)
        found.append(int("".join(map(str, text)), 2))
    assert p_value(found, chances) > FALSE_ALARM


def test_a_draw_is_kept_as_often_as_can_be():
    """1 - TV(p, q), and `block` keeps no fewer than `ratio`."""
    target, drafter = table(4, 5), table(4, 6)
    p, q = Law(target[0]), Law(drafter[0])
    kept = []
    for seed in range(800):
        sequence = new_sequence("ratio", seed)
        kept.append(step(sequence, drawn(sequence, drafter, 1), target).num_accepted)
    wanted = 1.0 - distance(p, q)
    assert np.mean(kept) == pytest.approx(wanted, abs=4 * math.sqrt(wanted * (1 - wanted) / 800))
    passes = {}
    for name in ("ratio", "block"):
        for seed in range(40):
            sequence = new_sequence(name, seed, max_tokens=40)
            write(sequence, target, drafter, 4)
            passes[name] = passes.get(name, 0) + sequence.stats.num_steps
    assert passes["block"] < passes["ratio"]


def test_block_s_rule_against_the_paper_s_by_hand():
    """Two drafts of p = (.5, .5), q = (.25, .75): by hand, x = (1, 1) has masses 2/3 and 4/9, and
    the first prefix is acceptable with R / (R + 1 - 2/3), R = max(1/3 - 1/4, 0)."""
    p, q = law(0.5, 0.5), law(0.25, 0.75)
    chance = (1 / 12) / (1 / 12 + 1 / 3)

    def keeps(first: float, second: float) -> list[int]:
        return block.verified([p, p, p], [q, q], [1, 1], [0.5, first, second])

    assert keeps(0.99, 4 / 9 - 1e-9)[:2] == [1, 1]
    assert len(keeps(0.99, 4 / 9 - 1e-9)) == 3
    assert keeps(chance - 1e-9, 4 / 9 + 1e-9) == [1, 0]  # max(1/3 - 1/4, 0), max(1/3 - 3/4, 0)
    assert keeps(chance + 1e-9, 4 / 9 + 1e-9) == [0]  # max(1/2 - 1/4, 0), 0


def test_rows_are_only_read_along_the_path():
    """What lies below a refused draft cannot matter: garbage there moves nothing."""
    target, drafter = table(4, 7), table(4, 8)
    for seed in range(50):
        verdicts = []
        for garbage in (False, True):
            sequence = new_sequence("ratio", seed, max_tokens=9)
            tree = drawn(sequence, drafter, 4)
            rows = rows_of(tree, target)
            if garbage:
                rows[len(verdicts[0].path) + 1 :] = np.nan
            verdicts.append(sequence.acceptor.accept(tree, rows, chooser(sequence)))
        assert verdicts[0] == verdicts[1]
