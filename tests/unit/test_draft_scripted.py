"""The scripted drafter does what its script says: other tests rest on it."""

from __future__ import annotations

import pytest

from drafting import VOCAB, by_model, depths_of, new_sequence, step
from drafting import TapeModel as Target
from foreword.draft import scripted
from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.tree import chain

TARGET = by_model(Target())
DEPTH = 5


def recorded(sequence):
    """The output a sequence will have, 60 tokens."""
    emitted: list[int] = []
    while len(emitted) < 60:
        emitted.append(TARGET(sequence, emitted))
    return emitted


def drafter(script, depth=DEPTH, vocab_size=VOCAB):
    return scripted.make(scripted.Config(script), DraftContext(depth, vocab_size))


def accepted(script, sequence, steps=6):
    made = drafter(script)
    made.begin(sequence)
    outcomes = [step(made, chain.make(), [sequence], TARGET, DEPTH)[0] for _ in range(steps)]
    return [outcome.verdict.num_accepted for outcome in outcomes]


def test_no_script_is_an_error_that_says_so():
    with pytest.raises(ConfigError, match="needs the option script"):
        scripted.make(scripted.Config(), DraftContext(4, 10))


@pytest.mark.parametrize("wrong", range(DEPTH + 1))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_v06_right_until_index_j(wrong, temperature):
    script = scripted.chain(recorded, DEPTH, scripted.right_until(wrong), VOCAB)
    sequence = new_sequence("s", [1, 2, 3], temperature=temperature)
    assert accepted(script, sequence) == [wrong] * 6
    assert sequence.output_ids == recorded(sequence)[: 6 * (wrong + 1)]


def test_v12_acceptance_by_row_and_step():
    """Row 0 all, row 1 none, row 2 two and then alternating: the script decides exactly."""
    wanted = {"r0": lambda step: DEPTH, "r1": lambda step: 0, "r2": lambda step: 2 - step % 2}

    def right(sequence, index):
        return index < wanted[sequence.id](sequence.stats.num_steps)

    made = drafter(scripted.chain(recorded, DEPTH, right, VOCAB))
    sequences = [new_sequence(name, [1, 2, row + 3]) for row, name in enumerate(wanted)]
    for turn in range(6):
        outcomes = step(made, chain.make(), sequences, TARGET, DEPTH)
        got = [outcome.verdict.num_accepted for outcome in outcomes]
        assert got == [DEPTH, 0, 2 - turn % 2]


def test_right_by_chance_is_a_function_of_the_position():
    right = scripted.right_by_chance(0.7)
    early, late = new_sequence("s", [1]), new_sequence("s", [1], output=[4, 4])
    assert [right(early, index + 2) for index in range(400)] == [
        right(late, index) for index in range(400)
    ]
    share = sum(right(early, index) for index in range(2000)) / 2000
    assert 0.66 < share < 0.74  # fixed by the hash, no chance in it
    assert not any(scripted.right_by_chance(0.0)(early, index) for index in range(50))
    assert all(scripted.right_by_chance(1.0)(early, index) for index in range(50))


@pytest.mark.parametrize("index", range(3))
def test_v19_plants_an_end_token(index):
    script = scripted.chain(recorded, 3, scripted.right_until(3), VOCAB)
    sequence = new_sequence("s", [1, 2])
    [trie] = drafter(scripted.planting(script, index, 39)).propose([sequence], [8])
    expected = recorded(sequence)[:3]
    expected[index] = 39
    assert trie.tokens == expected


def test_nodes_left_out_take_their_descendants_with_them():
    def script(sequence, budget):
        yield from [(-1, 99, 0.5), (0, 1, 0.5), (-1, 2, 0.9), (2, 3, 0.5), (3, 4, 0.5)]

    [trie] = drafter(script, depth=2, vocab_size=10).propose([new_sequence("s", [1])], [8])
    assert (trie.tokens, trie.parents) == ([2, 3], [-1, 0])
    assert max(depths_of(trie)) == 2
