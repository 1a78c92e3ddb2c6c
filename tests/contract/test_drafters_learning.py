"""What drafters learn across requests: bounded over any number of them, never across a salt, and
not at all where learning is frozen.

Every drafter of the folder goes through every test; those that learn nothing pass all the same.
"""

from __future__ import annotations

import dataclasses
import random

import pytest
from test_drafters import DEPTH, NAMES, easy, make, module_of, reachable

from drafting import VOCAB, new_sequence, plain, step, tape_store
from foreword.tree import best_first

LEARNING = ("auto", "recycle", "suffix")  # of one salt, from one request for the next
NAMES = [name for name in NAMES if name not in ("none", "scripted")]


def request(number, prompt, salt="", max_tokens=40, group=None):
    sequence = new_sequence(f"q{number}", prompt, max_tokens=max_tokens)
    sequence.request = dataclasses.replace(sequence.request, salt=salt, group=group)
    return sequence


def serve(drafter, sequence, following, steps=12):
    """From begin to a proper end."""
    drafter.begin(sequence)
    for _ in range(steps):
        if sequence.remaining > 0:
            step(drafter, best_first.make(), [sequence], following, 8)
    sequence.finish_reason = "length"
    drafter.end(sequence)


def walk_of(seed):
    """A target that is a function of the last token, another one for each seed."""
    after = list(range(VOCAB))
    random.Random(seed).shuffle(after)

    def following(sequence, emitted):
        return after[[*sequence.request.prompt_ids, *emitted][-1]]

    return following


def first_drafts(drafter, prompt, salt=""):
    """What a newcomer is offered; it leaves no trace."""
    newcomer = request("new", prompt, salt)
    drafter.begin(newcomer)
    [trie] = drafter.propose([newcomer], [8])
    drafter.end(newcomer)
    return plain(trie)


@pytest.mark.parametrize("name", NAMES)
def test_no_growth_over_1000_different_requests(name):
    """Random prompts, outputs, groups and salts: a bound, once reached, is kept."""
    numbers = random.Random(7)
    drafter = make(name, store=tape_store(400, prefix_caching=False))
    sizes = []
    for number in range(1000):
        prompt = [numbers.randrange(VOCAB) for _ in range(numbers.randrange(1, 9))]
        salt = f"salt{numbers.randrange(40)}"
        sequence = request(number, prompt, salt, max_tokens=20, group=f"g{number // 4}")
        serve(drafter, sequence, walk_of(numbers.random()), steps=3)
        if number % 100 == 99:
            if "own_kv" in module_of(name).needs:
                model_of(drafter).num_rows.clear()
            sizes.append(reachable(drafter))
    assert max(sizes[5:]) <= 1.25 * max(sizes[:5])


def model_of(drafter):
    return drafter._model if hasattr(drafter, "_model") else drafter._own.model


@pytest.mark.parametrize("name", NAMES)
def test_nothing_crosses_a_salt(name):
    """A drafter full of one salt's texts offers another salt what a new one would."""
    prompt, drafter = [1, 2], make(name)
    for number in range(20):
        serve(drafter, request(number, prompt, "mine", group="g"), walk_of(3))
    assert first_drafts(drafter, prompt, "yours") == first_drafts(make(name), prompt, "yours")
    learned = first_drafts(drafter, prompt, "mine") != first_drafts(make(name), prompt, "mine")
    assert learned == (name in LEARNING)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_crosses_a_salt_while_both_run(name):
    prompt, drafter = [1, 2], make(name)
    serve(drafter, request("early", prompt, "mine", group="g"), walk_of(3))
    elder = request("elder", prompt, "mine", group="g", max_tokens=100)
    drafter.begin(elder)
    for _ in range(10):
        step(drafter, best_first.make(), [elder], walk_of(3), 8)
    assert first_drafts(drafter, prompt, "yours") == first_drafts(make(name), prompt, "yours")
    drafter.end(elder)


@pytest.mark.parametrize("name", NAMES)
def test_frozen_learning_keeps_nothing(name):
    prompt, drafter = [1, 2], make(name, learning=False)
    before = reachable(drafter)
    for number in range(5):
        serve(drafter, request(number, prompt, group=f"g{number}"), walk_of(3))
    if not module_of(name).needs:  # a store has its prefix cache, the model of these tests a log
        assert reachable(drafter) == before
    assert first_drafts(drafter, prompt) == first_drafts(make(name, learning=False), prompt)


@pytest.mark.parametrize("name", NAMES)
def test_v16_frozen_learning_the_number_of_copies_changes_no_acceptance(name):
    stats = []
    for copies in (1, 4, 16):
        drafter = make(name, learning=False)
        sequences = [request(number, [5, 6, 7] * 3) for number in range(copies)]
        for sequence in sequences:
            drafter.begin(sequence)
        for _ in range(8):
            step(drafter, best_first.make(), sequences, easy(name), 2 * DEPTH)
        stats += [sequence.stats for sequence in sequences]
    assert all(item == stats[0] for item in stats)
