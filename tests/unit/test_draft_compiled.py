"""The compiled loops of drafting against the Python files they follow: same nodes, same chances."""

from __future__ import annotations

import random

import numpy as np
import pytest

from drafting import new_sequence
from foreword import compiled
from foreword.draft import auto, recycle, suffix
from foreword.draft._bigrams import Bigrams
from foreword.draft._context import DraftContext
from foreword.tree import goodput
from foreword.types import Budget, DraftTree, Outcome, Trie, Verdict

VOCAB = 24
STEPS = 60

needs_loops = pytest.mark.skipif(compiled.loops() is None, reason="the extension is not built")


def bigrams():
    random = np.random.default_rng(3)
    ids = np.stack([random.permutation(VOCAB)[:16] for _ in range(VOCAB // 2)])
    logits = -np.sort(-random.standard_normal((VOCAB // 2, 16)), axis=1)
    return Bigrams(ids.astype(np.int32), (3 * logits).astype(np.float32))


def made(name, learning):
    context = DraftContext(6, VOCAB, learning=learning)
    sources = {
        "suffix": suffix.make(suffix.Config(shared_tokens=64), context),
        "recycle": recycle.RecycleDrafter(recycle.Config(capacity=40), context, bigrams()),
    }
    if name != "auto":
        return sources[name]
    return auto.make(auto.Config(), DraftContext(6, VOCAB, learning=learning, sources=sources))


def columns(trie):
    return trie.tokens, trie.parents, trie.sources, trie.evidence


def run(name, temperature, learning):
    """Tries and chances of three texts, of which the third begins when the first has ended."""
    drafter, builder = made(name, learning), goodput.make()
    chance, rows = random.Random(5), np.random.default_rng(5)
    said = []
    texts = {key: new_sequence(key, [1, 2, 3, 4, 1, 2], temperature=temperature) for key in "abc"}
    running = [texts["a"], texts["b"]]
    for one in running:
        drafter.begin(one)
    for turn in range(STEPS):
        if turn == STEPS // 2:
            texts["a"].finish_reason = "stop"
            drafter.end(texts["a"])
            running = [texts["b"], texts["c"]]
            drafter.begin(texts["c"])
        tries = drafter.propose(running, [9, 5])
        budget = Budget(8, (5, 5), [1.0 + 0.1 * n for n in range(9)], [0.01, 0.0], [1.0, 2.0], 0.9)
        trees = builder.build([one.token_ids[-1] for one in running], tries, budget)
        said.append(([(columns(trie), trie.scores) for trie in tries], trees))
        outcomes = []
        for one, tree in zip(running, trees, strict=True):
            emitted, node = [], 0
            while node is not None and len(emitted) < 4:
                last = (one.token_ids + emitted)[-1]
                token = (last * 5 + 3) % VOCAB if chance.random() < 0.8 else chance.randrange(VOCAB)
                emitted.append(token)
                node = tree.child(node, token)
            one.token_ids += emitted
            verdict = Verdict(tuple(emitted), (), len(emitted) - 1, False)
            logits = (3 * rows.standard_normal((len(tree), VOCAB))).astype(np.float32)
            outcomes.append(Outcome(one, tree, verdict, logits))
        drafter.observe(outcomes)
    return said


@needs_loops
@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", ["suffix", "recycle", "auto"])
def test_compiled_drafting_is_what_the_python_files_say(name, temperature, learning, monkeypatch):
    monkeypatch.setattr(auto._Source, "judge", lambda self, seconds: None)  # it goes by the clock
    compiled_run = run(name, temperature, learning)
    monkeypatch.setattr(compiled, "loops", lambda: None)
    python_run = run(name, temperature, learning)
    assert sum(len(columns[0]) for tries, _ in python_run for columns, _ in tries) > STEPS
    for (tries, trees), (expected, expected_trees) in zip(compiled_run, python_run, strict=True):
        assert [columns for columns, _ in tries] == [columns for columns, _ in expected]
        for (_, scores), (_, wanted) in zip(tries, expected, strict=True):
            assert scores == pytest.approx(wanted, rel=1e-4)
        assert trees == expected_trees


@needs_loops
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_compiled_goodput_takes_the_same_nodes(rate, seed, monkeypatch):
    chance, tries = random.Random(seed), []
    for _ in range(3):
        trie = Trie()
        for _ in range(chance.randrange(12)):
            parent = chance.randrange(-1, len(trie))
            trie.add(parent, chance.randrange(6), chance.choice((0.2, 0.5, 0.9)), "s")
        tries.append(trie)
    costs = [1.0 + 0.15 * (n // 3) for n in range(16)]
    budget = Budget(15, (9, 3, 7), costs, [0.02, 0.0, 0.1], [1.0, 0.5, 2.0], rate)
    found = goodput.make().build([1, 2, 3], tries, budget)
    monkeypatch.setattr(compiled, "loops", lambda: None)
    assert found == goodput.make().build([1, 2, 3], tries, budget)
    assert all(isinstance(tree, DraftTree) for tree in found)
