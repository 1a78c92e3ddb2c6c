"""A draft model as drafter: its K/V never has a hole, a stale row or a neighbour's row.

The stand-in model reads its tokens back through the slots it is given, so each of these faults
changes its logits or trips an assertion inside it; the store is the real paged one.
"""

from __future__ import annotations

import numpy as np
import pytest

from drafting import (
    VOCAB,
    TapeModel,
    assert_sound,
    by_model,
    depths_of,
    held_ids,
    new_sequence,
    plain,
    reaches_of,
    step,
    tape_store,
    walk,
)
from foreword.draft import model
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.sample import sampler
from foreword.tree import best_first, chain
from foreword.types import Budget, Trie

TARGET = TapeModel()
FIXED = {"confidence_threshold": 0.0}  # paths of full depth whatever their scores


def drafter(depth=4, own=None, store=None, vocab_size=VOCAB, **options):
    own, store = own or TapeModel(), store or tape_store()
    context = DraftContext(depth, vocab_size, own, store, sampler.make())
    return model.make(model.Config(**options), context)


def batch_of(rows, temperature, prefix="s"):
    lengths = (1, 2, 7, 31, 64, 5, 16, 17)
    return [
        new_sequence(
            f"{prefix}{row}",
            [(row * 5 + i * i) % VOCAB for i in range(lengths[row])],
            temperature=temperature,
        )
        for row in range(rows)
    ]


def run(made, sequences, depth, steps, builder=None, verified=None):
    for sequence in sequences:
        made.begin(sequence)
    for _ in range(steps):
        verified = depth if verified is None else verified
        step(made, builder or chain.make(), sequences, by_model(TARGET), 99, verified)
        for sequence in sequences:
            held = held_ids(made._own.kv, sequence)
            assert held == sequence.token_ids[: len(held)]
            assert len(held) < len(sequence.token_ids)
        made._own.kv.check()


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v17_the_target_as_its_own_drafter_is_always_right(depth, rows, temperature):
    """A hole after full acceptance would show at the next step. 200 tokens, 100 in a batch."""
    sequences = batch_of(rows, temperature)
    steps = (200 if rows == 1 else 100) // (depth + 1) + 1
    run(drafter(depth, **FIXED), sequences, depth, steps)
    for sequence in sequences:
        assert sequence.stats.acceptance_rate == 1.0
        assert sequence.stats.histogram == {depth: steps}


def test_v17_after_full_acceptance_two_tokens_are_fed():
    own = TapeModel()
    made, sequences = drafter(4, own, **FIXED), batch_of(1, 0.0)
    run(made, sequences, 4, 1)
    own.num_rows.clear()
    made.propose(sequences, [4])
    assert own.num_rows == [2, 1, 1, 1]


def test_one_pass_per_level_for_all_sequences():
    own = TapeModel()
    made, sequences = drafter(3, own, **FIXED), batch_of(8, 0.0)
    for sequence in sequences:
        made.begin(sequence)
    made.propose(sequences, [9] * 8)
    assert own.num_rows == [sum(len(sequence.token_ids) for sequence in sequences), 8, 8]


@pytest.mark.parametrize("verified", [0, 1, 2, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_shorter_than_the_drafted_path(verified, temperature):
    """The builder cuts; what was fed beyond may agree all the same, one token is left to feed."""
    sequences = batch_of(5, temperature)
    run(drafter(6, **FIXED), sequences, 6, 12, verified=verified)
    for sequence in sequences:
        assert sequence.stats.histogram == {verified: 12}


@pytest.mark.parametrize("builder", [chain, best_first])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ragged_acceptance_with_a_drafter_that_drifts(builder, temperature):
    """Rejections, and siblings accepted off the fed path, at every depth."""
    sequences = batch_of(8, temperature)
    run(drafter(4, TapeModel(drift=0.3), **FIXED), sequences, 10, 25, builder.make())
    depths = {depth for sequence in sequences for depth in sequence.stats.histogram}
    assert depths == {0, 1, 2, 3, 4}
    for sequence in sequences:
        emitted: list[int] = []
        while len(emitted) < sequence.num_output:
            emitted.append(by_model(TARGET)(sequence, emitted))
        assert sequence.output_ids == emitted


def test_siblings_are_the_best_ranked_children():
    """At temperature 0: the highest logits, as leaves next to the path."""
    made, [sequence] = drafter(3, num_branches=3, **FIXED), batch_of(1, 0.0)
    made.begin(sequence)
    [trie] = made.propose([sequence], [9])
    assert sorted(depths_of(trie)) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    path = list(sequence.token_ids)
    for level in range(3):
        best = np.argsort(-TARGET.logits(path), kind="stable")[:3].tolist()
        assert trie.tokens[3 * level : 3 * level + 3] == best
        path.append(best[0])


def test_shared_noise_makes_the_best_child_the_choice_of_the_target():
    made, sequences = drafter(4, num_branches=1, **FIXED), batch_of(8, 6.0)
    for sequence in sequences:
        made.begin(sequence)
    greedy_too = 0
    for sequence, trie in zip(sequences, made.propose(sequences, [4] * 8), strict=True):
        verdict = walk(sequence, tree_of(sequence, trie), by_model(TARGET))
        assert list(verdict.tokens[:4]) == trie.tokens
        greedy_too += trie.tokens[0] == int(TARGET.logits(sequence.token_ids).argmax())
    assert greedy_too < 8  # the noise decides somewhere


def tree_of(sequence, trie: Trie):
    [tree] = chain.make().build([sequence.token_ids[-1]], [trie], Budget(99, (99,)))
    return tree


def test_a_small_budget_keeps_the_nodes_of_highest_reach():
    sequence = batch_of(1, 0.0)[0]
    made = drafter(4, **FIXED)
    made.begin(sequence)
    whole = made.propose([sequence], [99])[0]
    for budget in range(1, 12):
        [trie] = made.propose([sequence], [budget])
        assert_sound(trie, budget, 4, VOCAB)
        if budget >= 4:  # below, the path itself is shorter
            assert sorted(reaches_of(trie)) == sorted(reaches_of(whole))[-budget:]


def test_an_unsure_path_is_not_continued():
    made, sequences = drafter(8, confidence_threshold=0.5), batch_of(8, 0.0)
    for sequence in sequences:
        made.begin(sequence)
    lengths = set()
    for trie in made.propose(sequences, [99] * 8):
        reaches = reaches_of(trie)
        inner = {parent for parent in trie.parents if parent >= 0}
        assert all(reaches[node] >= 0.5 for node in inner)
        lengths.add(max(depths_of(trie)))
    assert len(lengths) > 1


@pytest.mark.parametrize("chunk_size", [1, 3, 64])
def test_the_chunk_size_changes_nothing_but_the_passes(chunk_size):
    expected, got = [], []
    for answers, size in ((expected, 256), (got, chunk_size)):
        sequences = batch_of(8, 0.8)
        made = drafter(4, chunk_size=size)
        for sequence in sequences:
            made.begin(sequence)
        answers += [plain(trie) for trie in made.propose(sequences, [8] * 8)]
    assert got == expected


def test_v57_prefix_hit_and_preemption_leave_no_gap():
    """The same prompts three times on one store: the second time the prefix is a cache hit; then a
    preempted sequence comes back with its output."""
    store = tape_store()
    own = TapeModel()
    made = drafter(4, own, store, **FIXED)
    fed = []
    for turn in range(3):
        sequences = batch_of(5, 0.0, prefix=f"t{turn}-")
        own.num_rows.clear()
        run(made, sequences, 4, 6)
        fed.append(own.num_rows[0])
        assert all(sequence.stats.acceptance_rate == 1.0 for sequence in sequences)
        made.end(sequences[0])
        made.begin(sequences[0])
        step(made, chain.make(), sequences, by_model(TARGET), 99, 4)
        assert all(sequence.stats.acceptance_rate == 1.0 for sequence in sequences)
        for sequence in sequences:
            made.end(sequence)
    assert store.prefix_hits > 0
    assert fed[1] < fed[0]
    store.check()
    assert store.usage == 0.0


def test_v57_acceptance_survives_eviction_pressure():
    store = tape_store(120)
    made = drafter(4, store=store, **FIXED)
    for turn in range(12):
        [sequence] = [new_sequence(f"p{turn}", [turn % 4] * 30)]
        run(made, [sequence], 4, 6)
        assert sequence.stats.acceptance_rate == 1.0
        made.end(sequence)
    store.check()


@pytest.mark.parametrize("columns", [30, 34, 37, 40, 48])
@pytest.mark.parametrize("emittable", [35, 40])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v49_other_vocabulary_sizes(columns, emittable, temperature):
    """Fewer or more logit columns than the target has ids: nothing beyond either is drafted, and a
    history with ids the draft model has no row for still gets drafts."""
    sequences = batch_of(8, temperature)
    sequences[0].token_ids.append(39)
    made = drafter(4, TapeModel(columns), vocab_size=emittable)
    for sequence in sequences:
        made.begin(sequence)
    for _ in range(4):
        tries = made.propose(sequences, [8] * 8)
        for trie in tries:
            assert len(trie) > 0
            assert_sound(trie, 8, 4, min(columns, emittable))
        step(made, best_first.make(), sequences, by_model(TARGET), 8)


def test_a_full_store_means_no_drafts_for_the_sequence_without_room():
    """Pages of 4: two sequences of 20 tokens fill 12 pages with their drafts; the third waits."""
    store = tape_store(48)
    made = drafter(4, store=store, **FIXED)
    sequences = [new_sequence(f"f{row}", [row + 1] * 20, temperature=0.0) for row in range(3)]
    for sequence in sequences:
        made.begin(sequence)
    first = made.propose(sequences, [4] * 3)
    assert [len(trie) > 0 for trie in first] == [True, True, False]
    store.check()
    for _ in range(4):  # the others grow until they too find no room; nothing breaks
        step(made, chain.make(), sequences, by_model(TARGET), 4)
        store.check()
    made.end(sequences[0])
    made.end(sequences[1])
    [trie] = made.propose(sequences[2:], [4])
    assert len(trie) == 4
    assert best_path_is_the_targets(sequences[2], trie)


def best_path_is_the_targets(sequence, trie):
    verdict = walk(sequence, tree_of(sequence, trie), by_model(TARGET))
    return verdict.num_accepted == max(depths_of(trie))


class BrokenModel(TapeModel):
    """NaN for histories that start with 1."""

    def logits(self, path):
        row = super().logits(path)
        return np.full_like(row, np.nan) if path[0] == 1 else row


def test_non_finite_draft_logits_end_a_draft_not_a_request():
    made = drafter(4, BrokenModel())
    sequences = [new_sequence("a", [1, 2, 3]), new_sequence("b", [2, 2, 3])]
    for sequence in sequences:
        made.begin(sequence)
    broken, sound = made.propose(sequences, [4, 4])
    assert len(broken) == 0
    assert len(sound) > 0


def test_v16_acceptance_does_not_depend_on_the_number_of_copies():
    stats = []
    for copies in (1, 4, 16):
        sequences = [new_sequence(f"c{row}", [3, 1, 4, 1, 5]) for row in range(copies)]
        run(drafter(4, TapeModel(drift=0.3), **FIXED), sequences, 4, 10)
        stats += [sequence.stats for sequence in sequences]
    assert all(item == stats[0] for item in stats)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_branches": 0}, "num_branches must be a whole number >= 1"),
        ({"chunk_size": 0}, "chunk_size must be a whole number >= 1"),
        ({"confidence_threshold": 1.5}, "confidence_threshold must be between 0 and 1"),
        ({"confidence_threshold": float("nan")}, "confidence_threshold must be between 0 and 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        model.Config(**options)


def test_without_a_draft_model_it_says_what_to_do():
    with pytest.raises(ConfigError, match="--draft-model"):
        model.make(model.Config(), DraftContext(4, VOCAB))
