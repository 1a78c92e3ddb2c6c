"""The cascade drafts what the draft model alone would, in fewer passes; its K/V has no hole.

The stand-in model reads its tokens back through the slots it is given (see drafting.py), so a row
of a refused guess that it should not see changes its logits.
"""

from __future__ import annotations

import pytest

from drafting import (
    VOCAB,
    TapeModel,
    assert_sound,
    by_model,
    held_ids,
    new_sequence,
    plain,
    step,
    tape_store,
)
from foreword.draft import cascade, model
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.sample import sampler
from foreword.tree import best_first, chain
from foreword.types import Trie

TARGET = TapeModel()
FIXED = {"confidence_threshold": 0.0}  # paths of full depth whatever their scores


class Guesser:
    """Guesses what `know` says follows a history, right up to `right` tokens; a wrong sibling
    beside each."""

    name = "guesser"

    def __init__(self, know=None, right=99):
        self.know, self.right, self.limits = know, right, []

    def begin(self, sequence): ...

    def observe(self, outcomes): ...

    def end(self, sequence): ...

    def propose(self, sequences, budget):
        self.limits.append(list(budget))
        return [self._guess(*row) for row in zip(sequences, budget, strict=True)]

    def _guess(self, sequence, limit):
        trie, node, emitted = Trie(), -1, list(sequence.output_ids)
        for level in range(limit // 2 if self.know else 0):
            token = self.know(sequence, emitted)
            wrong = (token + 1) % VOCAB
            trie.add(node, wrong, 0.1, self.name)
            node = trie.add(node, token if level < self.right else (token + 2) % VOCAB, 0.9, "g")
            emitted.append(token)
        return trie


def drafter(guesser, depth=4, own=None, store=None, **options):
    own = own or TapeModel()
    context = DraftContext(
        depth, VOCAB, own, store or tape_store(), sampler.make(), sources={"guesser": guesser}
    )
    return cascade.make(cascade.Config(source="guesser", **options), context)


def alone(depth=4, own=None, **options):
    """The same draft model without a source."""
    context = DraftContext(depth, VOCAB, own or TapeModel(), tape_store(), sampler.make())
    return model.make(model.Config(**options), context)


def batch_of(rows, temperature):
    lengths = (1, 2, 7, 31, 64, 5, 16, 17)
    return [
        new_sequence(
            f"s{row}",
            [(row * 5 + i * i) % VOCAB for i in range(lengths[row])],
            temperature=temperature,
        )
        for row in range(rows)
    ]


def begin(made, sequences):
    for sequence in sequences:
        made.begin(sequence)


GUESSERS = {
    "right": lambda: Guesser(by_model(TARGET)),
    "half right": lambda: Guesser(by_model(TARGET), right=2),
    "wrong": lambda: Guesser(by_model(TARGET), right=0),
    "silent": lambda: Guesser(),
}


@pytest.mark.parametrize("kind", GUESSERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_drafts_are_those_of_the_draft_model_alone(kind, temperature):
    """Twelve steps with a draft model that drifts from the target: same tries every time."""
    ours, theirs = batch_of(8, temperature), batch_of(8, temperature)
    made = drafter(GUESSERS[kind](), own=TapeModel(drift=0.3))
    other = alone(own=TapeModel(drift=0.3))
    begin(made, ours)
    begin(other, theirs)
    for _ in range(12):
        got, expected = made.propose(ours, [9] * 8), other.propose(theirs, [9] * 8)
        assert [plain(trie)[:3] for trie in got] == [plain(trie)[:3] for trie in expected]
        step(made, best_first.make(), ours, by_model(TARGET), 9)
        step(other, best_first.make(), theirs, by_model(TARGET), 9)
        assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
        for sequence in ours:
            held = held_ids(made._own.kv, sequence)
            assert held == sequence.token_ids[: len(held)]
            assert len(held) < len(sequence.token_ids)
        made._own.kv.check()


@pytest.mark.parametrize(
    ("kind", "passes"), [("right", 1), ("half right", 2), ("wrong", 4), ("silent", 4)]
)
def test_passes_saved_by_right_guesses(kind, passes):
    """Paths of 4 need 4 passes alone. Right up to two tokens: the third disagrees, and the pass
    that reads it ends the draft."""
    own = TapeModel()
    made, [sequence] = drafter(GUESSERS[kind](), own=own, **FIXED), batch_of(1, 0.0)
    begin(made, [sequence])
    made.propose([sequence], [9])
    assert len(own.num_rows) == passes


def test_after_a_disagreement_the_guesses_are_taken_up_where_the_token_comes_again():
    """The source skips the second token of six: what it guessed after the third is read with the
    third, three tokens or one. Alone it would take six passes."""

    class Skipping(Guesser):
        def _guess(self, sequence, limit):
            trie, emitted, node = Trie(), list(sequence.output_ids), -1
            for level in range(5):
                emitted.append(by_model(TARGET)(sequence, emitted))
                if level != 1:
                    node = trie.add(node, emitted[-1], 0.9, self.name)
            return trie

    for resume, passes in ((3, 3), (1, 4)):
        own = TapeModel()
        made = drafter(Skipping(), depth=6, own=own, resume=resume, num_branches=1, **FIXED)
        [sequence] = batch_of(1, 0.0)
        begin(made, [sequence])
        [trie] = made.propose([sequence], [6])
        assert len(trie) == 6
        assert len(own.num_rows) == passes


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v17_the_target_as_its_own_drafter_is_always_right(depth, rows, temperature):
    """V17: whether the source is right or not; 200 tokens, 100 in a batch."""
    sequences = batch_of(rows, temperature)
    steps = (200 if rows == 1 else 60) // (depth + 1) + 1
    made = drafter(GUESSERS["half right"](), depth=depth, **FIXED)
    begin(made, sequences)
    for _ in range(steps):
        step(made, chain.make(), sequences, by_model(TARGET), 99, depth)
    for sequence in sequences:
        assert sequence.stats.acceptance_rate == 1.0
        assert sequence.stats.histogram == {depth: steps}


def test_evidence_says_where_the_source_agreed():
    made, [sequence] = drafter(GUESSERS["half right"](), num_branches=1, **FIXED), batch_of(1, 0.0)
    begin(made, [sequence])
    [trie] = made.propose([sequence], [4])
    assert trie.evidence == [1, 1, 0, 0]
    assert trie.sources == ["cascade"] * 4


@pytest.mark.parametrize("size", [48, 60, 90])
def test_a_full_store_costs_drafts_and_nothing_else(size):
    store = tape_store(size)
    made = drafter(GUESSERS["half right"](), store=store, **FIXED)
    sequences = [new_sequence(f"f{row}", [row + 1] * 20) for row in range(3)]
    begin(made, sequences)
    drafted = 0
    for _ in range(5):
        tries = made.propose(sequences, [8] * 3)
        for trie in tries:
            assert_sound(trie, 8, 4, VOCAB)
        drafted += sum(map(len, tries))
        step(made, chain.make(), sequences, by_model(TARGET), 4)
        store.check()
    assert drafted > 0
    for sequence in sequences:
        made.end(sequence)
    assert store.usage == 0.0


def test_the_source_is_timed_and_asked_for_its_guesses():
    guesser = Guesser()
    made, sequences = drafter(guesser, num_guesses=5), batch_of(2, 0.0)
    begin(made, sequences)
    made.propose(sequences, [4, 0])
    assert guesser.limits == [[5]]
    assert made._context.clock.calls == {"guesser": 1}


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"source": 3}, "source must be the name of a drafter"),
        ({"num_guesses": 0}, "num_guesses must be a whole number >= 1"),
        ({"resume": 0}, "resume must be a whole number >= 1"),
        ({"confidence_threshold": 2}, "confidence_threshold must be between 0 and 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        cascade.Config(**options)


def test_without_a_draft_model_or_a_source_it_says_what_to_do():
    with pytest.raises(ConfigError, match="--draft-model"):
        cascade.make(cascade.Config(), DraftContext(4, VOCAB))
    context = DraftContext(4, VOCAB, TapeModel(), tape_store(), sampler.make())
    with pytest.raises(ConfigError, match="was not given its source 'ngram'"):
        cascade.make(cascade.Config(), context)
