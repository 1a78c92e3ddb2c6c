"""Promises of every approximate acceptor in the folder, on random trees over a toy target."""

from __future__ import annotations

import importlib
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from accepting import (
    DRAWING,
    SAMPLER,
    SILENT,
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
from foreword.errors import RequestError
from foreword.families import names
from foreword.types import DraftTree, Trie

VOCAB = 6
APPROXIMATE = [name for name in names("accept") if name != "exact"]
TARGET, DRAFTER = table(VOCAB, 1), table(VOCAB, 2)


def module(name: str) -> Any:
    return importlib.import_module(f"foreword.accept.{name}")


def random_tree(rng: np.random.Generator, root: int) -> DraftTree:
    trie = Trie()
    for _ in range(int(rng.integers(0, 10))):
        trie.add(int(rng.integers(-1, len(trie))), int(rng.integers(VOCAB)), 0.5, "toy")
    return tree_of(root, trie)


def trees(sequence: Any, rng: np.random.Generator) -> DraftTree:
    """Random ones, and drawn paths for those that take them."""
    if rng.integers(2):
        return drawn(sequence, DRAFTER, int(rng.integers(0, 4)))
    return random_tree(rng, sequence.token_ids[-1])


class EvenIds:
    """A grammar of even ids; notes what it was told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def begin(self) -> EvenIds:
        return self

    def apply(self, row: np.ndarray, position: int) -> None:
        row[1::2] = -np.inf

    def advance(self, row: np.ndarray, token: int) -> None:
        self.told.append(token)


def test_the_folder_holds_what_issue_5_asks_for():
    assert {"typical", "conditional", "cascade", "reward", "ratio"} <= set(APPROXIMATE)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_names_and_words(name: str):
    """The file's name everywhere; needs known words; every option said in the result."""
    assert module(name).needs <= {"law", "temperature"}
    assert isinstance(module(name).keeps, bool)
    acceptor = new_sequence(name).acceptor
    assert acceptor.name == name
    assert acceptor.draws == module(name).draws
    assert acceptor.exactness.startswith(f"approximate: {name}")
    assert ("distribution kept" in acceptor.exactness) == module(name).keeps
    for option in fields(module(name).Config):
        assert f"{option.name}=" in acceptor.exactness


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_verdict_is_what_was_emitted_and_its_path(name: str):
    """At least one token; the path spells all but the last; where the walk stops without an end, no
    child holds the last token. The rows shown to `choose` are those of the path."""
    rng = np.random.default_rng(5)
    accepted = 0
    for seed in range(60):
        sequence = new_sequence(name, seed, max_tokens=int(rng.integers(1, 12)))
        while sequence.finish_reason is None:
            tree, before = trees(sequence, rng), len(sequence.token_ids)
            rows, shown = rows_of(tree, TARGET), []
            choose = chooser(sequence)

            def watched(row: np.ndarray, token: int | None = None, choose=choose, shown=shown):
                shown.append(row.ctypes.data)
                return choose(row, token)

            verdict = sequence.acceptor.accept(tree, rows, watched)
            assert verdict.tokens == tuple(sequence.token_ids[before:])
            assert tuple(tree.tokens[node] for node in verdict.path) == verdict.tokens[:-1]
            assert shown == [rows[node].ctypes.data for node in (0, *verdict.path)]
            assert verdict.finished == (sequence.finish_reason is not None)
            last = tree.child(verdict.path[-1] if verdict.path else 0, verdict.tokens[-1])
            assert last is None or verdict.finished
            assert verdict.num_accepted == len(verdict.path) + (last is not None)
            accepted += verdict.num_accepted
    assert accepted > 20


@pytest.mark.parametrize("name", APPROXIMATE)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_masked_token_never_comes(name: str, temperature: float):
    """A grammar of even ids under drafts of any ids; it is told each emitted token once, in
    order."""
    if temperature == 0.0 and "temperature" in module(name).needs:
        with pytest.raises(RequestError, match="needs temperature > 0"):
            new_sequence(name, temperature=0.0)
        return
    rng = np.random.default_rng(6)
    for seed in range(25):
        grammar = EvenIds()
        sequence = new_sequence(name, seed, max_tokens=9, grammar=grammar, temperature=temperature)
        while sequence.finish_reason is None:
            step(sequence, trees(sequence, rng), TARGET)
        assert not any(token % 2 for token in sequence.output_ids)
        assert grammar.told == sequence.output_ids


@pytest.mark.parametrize("name", APPROXIMATE)
@pytest.mark.parametrize("kept", [{"top_k": 2}, {"top_p": 0.4}, {"min_p": 0.6}])
def test_a_filtered_token_never_comes(name: str, kept: dict[str, Any]):
    rng = np.random.default_rng(7)
    for seed in range(20):
        sequence = new_sequence(name, seed, max_tokens=8, **kept)
        while sequence.finish_reason is None:
            step(sequence, trees(sequence, rng), TARGET)
        whole = sequence.token_ids
        for last, token in pairwise(whole):
            state, params = sequence.sampler_state, sequence.request.params
            assert SAMPLER.law(logits(TARGET[last]), params, state, 0).of(token) > 0.0


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_end_inside_the_path_ends_the_text(name: str):
    """Ids 4 and 5 end the text, accepted draft or not; nothing follows."""
    rng = np.random.default_rng(8)
    inside = 0
    for seed in range(60):
        sequence = new_sequence(name, seed, max_tokens=30, ends=frozenset({4, 5}))
        while sequence.finish_reason is None:
            tree = trees(sequence, rng)
            verdict = step(sequence, tree, TARGET)
        inside += verdict.num_accepted == len(verdict.tokens)
        assert not {4, 5} & set(sequence.output_ids[:-1])
        assert (sequence.finish_reason == "stop") == (sequence.output_ids[-1] in (4, 5))
    assert inside > 4


@pytest.mark.parametrize("name", APPROXIMATE)
def test_logprobs_are_those_of_the_emitted_tokens(name: str):
    sequence = new_sequence(name, 3, max_tokens=40, logprobs=1)
    write(sequence, TARGET, DRAFTER, 3)
    whole = sequence.token_ids
    assert len(sequence.logprobs) == 40
    for last, token, entry in zip(whole, whole[1:], sequence.logprobs, strict=False):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(np.log(TARGET[last][token]), abs=1e-5)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_the_same_drafts_and_seed_give_the_same_text(name: str):
    texts = [write(new_sequence(name, 9, max_tokens=30), TARGET, DRAFTER, 3) for _ in range(2)]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", [one for one in APPROXIMATE if "law" in module(one).needs])
def test_what_needs_a_law_refuses_other_drafters_by_name(name: str):
    with pytest.raises(RequestError, match=f"'{name}' needs a drafter .* drafts with 'none'"):
        new_sequence(name, drafter=SILENT)
    assert new_sequence(name, drafter=DRAWING).acceptor is not None


@pytest.mark.parametrize("name", APPROXIMATE)
def test_an_unknown_option_lists_the_known_ones(name: str):
    with pytest.raises(RequestError, match="unknown option 'colour'") as caught:
        new_sequence(name, options={"colour": 1})
    assert caught.value.parameter == "acceptance_options"
