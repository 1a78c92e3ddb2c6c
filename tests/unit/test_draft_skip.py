"""Layers left out: what is read and where it is written, how a path is drafted, how a set is
searched for."""

from __future__ import annotations

import numpy as np
import pytest

from drafting import (
    VOCAB,
    TapeAhead,
    TapeModel,
    assert_sound,
    by_model,
    depths_of,
    new_sequence,
    step,
    tape_store,
)
from foreword.draft import skip
from foreword.draft._ahead import Ahead, Line
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.sample import sampler
from foreword.tree import chain

TARGET = TapeModel()
FIXED = {"confidence_threshold": 0.0, "num_branches": 1}


class Layered(TapeModel):
    """A tape with four layers. Every unit left out makes it drift from the target a bit more,
    units of `harmless` excepted."""

    num_layers = 4

    def __init__(self, harmless=()):
        super().__init__()
        self.harmless = frozenset(harmless)

    def forward(self, batch, kv, skip=frozenset()):
        self.drift = 0.25 * len(skip - self.harmless)
        return super().forward(batch, kv)


def drafter(ahead, depth=4, learning=True, **options):
    context = DraftContext(depth, VOCAB, sampler=sampler.make(), ahead=ahead, learning=learning)
    return skip.make(skip.Config(**options), context)


def stored(prompts, rows=8, output=()):
    """A store that holds all but the last token of each sequence, and `rows` reserved ones."""
    store, sequences = tape_store(), []
    for number, prompt in enumerate(prompts):
        sequence = new_sequence(f"s{number}", prompt, output=output)
        ids = sequence.token_ids[:-1]
        store.begin(sequence.id, ids)
        assert store.reserve(sequence.id, len(ids))
        slots = store.slots(sequence.id)
        store.pool.tokens[slots], store.pool.positions[slots] = ids, range(len(ids))
        store.commit(sequence.id, range(len(ids)), ids)
        assert store.reserve(sequence.id, rows)
        sequences.append(sequence)
    return store, sequences


PROMPTS = ([5, 1, 4], [7, 7, 7, 7, 2, 3, 9], list(range(30)))


def committed(store, sequences):
    return [
        (store.pool.tokens[slots].tolist(), store.pool.positions[slots].tolist())
        for slots in (store.slots(one.id)[: store.length(one.id)] for one in sequences)
    ]


def test_drafts_read_the_targets_own_keys_and_write_to_reserved_rows_only():
    """The model reads its tokens back through the slots: a wrong one changes its logits."""
    store, sequences = stored(PROMPTS)
    before, free = committed(store, sequences), store.num_free_tokens
    taken = np.concatenate([store.slots(one.id)[store.length(one.id) :] for one in sequences])
    others = np.setdiff1d(np.arange(store.pool.num_slots), taken)
    outside = store.pool.tokens[others].tolist()
    made = drafter(Ahead(Layered(), store), skip_share=0.0, **FIXED)
    for sequence, trie in zip(sequences, made.propose(sequences, [4] * 3), strict=True):
        path = list(sequence.output_ids)
        for token in trie.tokens:
            assert token == by_model(TARGET)(sequence, path)
            path.append(token)
        assert len(trie) == 4
    assert committed(store, sequences) == before
    assert store.pool.tokens[others].tolist() == outside
    assert store.num_free_tokens == free
    store.check()


def test_what_the_target_does_not_hold_yet_is_read_first():
    """The end of a prompt, or a resumed sequence: up to `window` tokens, else no drafts."""
    store, [sequence] = stored([[5, 1, 4]], rows=12)
    sequence.token_ids += [8, 9, 10]
    made = drafter(Ahead(Layered(), store), skip_share=0.0, window=4, **FIXED)
    [trie] = made.propose([sequence], [4])
    assert trie.tokens[0] == by_model(TARGET)(sequence, sequence.output_ids)
    sequence.token_ids.append(11)
    [trie] = made.propose([sequence], [4])
    assert len(trie) == 0


def test_no_more_rows_are_written_than_were_reserved():
    for rows, depth in ((1, 1), (2, 2), (3, 3), (8, 4)):
        store, [sequence] = stored([[5, 1, 4]], rows=rows)
        made = drafter(Ahead(Layered(), store), skip_share=0.0, **FIXED)
        [trie] = made.propose([sequence], [4])
        assert len(trie) == depth


@pytest.mark.parametrize(("start", "count"), [(2, 9), (4, 1)])
def test_a_line_outside_the_reservation_is_refused(start, count):
    """Sequence of 3, holding 2, with 8 reserved rows: nine are too many, and position 4 hangs on
    positions 2 and 3, of which at least one must have room for itself."""
    store, [sequence] = stored([[5, 1, 4]], rows=8 if count == 9 else 2)
    with pytest.raises(AssertionError):
        Ahead(Layered(), store).read([Line(sequence, start, [1] * count)], frozenset())


def test_the_first_set_is_spread_and_spares_both_ends():
    made = drafter(TapeAhead(TARGET), skip_share=0.5)  # 12 units: 2 .. 9 are optional
    assert made.skip == {2, 4, 6, 8}
    assert drafter(TapeAhead(TARGET), skip_share=0.0).skip == frozenset()
    assert drafter(TapeAhead(TARGET), skip_share=1.0).skip == set(range(2, 10))


def searched(harmless, trials, **options):
    """The set after some trials on a model whose `harmless` units can be left out for nothing."""
    store, sequences = stored(PROMPTS, rows=12, output=[3] * 8)
    for sequence in sequences:  # eight tokens as the target would have emitted them
        del sequence.token_ids[-8:]
        for _ in range(8):
            sequence.token_ids.append(by_model(TARGET)(sequence, sequence.output_ids))
        slots = store.slots(sequence.id)[: store.length(sequence.id)]
        store.pool.tokens[slots] = sequence.token_ids[:-1]
    options = {"skip_share": 0.5, "search_every": 1, **FIXED, **options}
    made = drafter(Ahead(Layered(harmless), store), **options)
    before = committed(store, sequences)
    for _ in range(trials):
        made.propose(sequences, [4] * 3)
    assert committed(store, sequences) == before
    return made


def test_the_search_finds_the_units_that_are_not_missed():
    """Optional are 2 .. 5, two of them are left out: 3 and 4 are harmless."""
    made = searched((3, 4), 40)
    assert made.skip == {3, 4}


def test_the_search_keeps_the_share_and_ends():
    made = searched((), 30, max_trials=5)
    assert len(made.skip) == 2
    assert made._trials == 5
    assert searched((2, 4), 30, patience=3)._trials == 3


def test_frozen_there_is_no_search():
    store, sequences = stored(PROMPTS, rows=12)
    ahead = Ahead(Layered((3, 4)), store)
    made = drafter(ahead, learning=False, skip_share=0.5, search_every=1)
    for _ in range(10):
        made.propose(sequences, [4] * 3)
    assert made._trials == 0


def test_an_unsure_path_is_not_continued():
    made = drafter(TapeAhead(TARGET), depth=8, confidence_threshold=0.5)
    sequences = [new_sequence(f"a{row}", [row, 1, 2]) for row in range(8)]
    lengths = set()
    for trie in made.propose(sequences, [99] * 8):
        assert_sound(trie, 99, 8, VOCAB)
        lengths.add(max(depths_of(trie)))
    assert len(lengths) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v17_with_nothing_left_out_it_is_always_right(temperature):
    sequences = [new_sequence(f"v{row}", [row, 1], temperature=temperature) for row in range(8)]
    made = drafter(TapeAhead(TARGET), skip_share=0.0, **FIXED)
    for _ in range(12):
        step(made, chain.make(), sequences, by_model(TARGET), 99, 4)
    for sequence in sequences:
        assert sequence.stats.histogram == {4: 12}


class Broken(TapeModel):
    def logits(self, path):
        row = super().logits(path)
        return np.full_like(row, np.nan) if path[0] == 1 else row


def test_non_finite_logits_end_a_draft_not_a_request():
    made = drafter(TapeAhead(Broken()))
    broken, sound = made.propose([new_sequence("a", [1, 2]), new_sequence("b", [2, 2])], [4, 4])
    assert len(broken) == 0
    assert len(sound) > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"skip_share": 1.5}, "skip_share must be between 0 and 1"),
        ({"confidence_threshold": -1}, "confidence_threshold must be between 0 and 1"),
        ({"window": 0}, "window must be a whole number >= 1"),
        ({"patience": 0}, "patience must be a whole number >= 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        skip.Config(**options)
