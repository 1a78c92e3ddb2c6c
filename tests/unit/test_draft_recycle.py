"""What is kept of the target's rows, by which contexts, and how it becomes a trie; the target's own
bigrams and the file they are kept in; reading prompts."""

from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import VOCAB, TapeModel, new_sequence, tape_store
from foreword import machine
from foreword.build import build
from foreword.config import CacheConfig, EngineConfig, SpeculativeConfig
from foreword.draft import _bigrams, recycle
from foreword.draft._bigrams import ROWS, WIDTH, Bigrams, Source
from foreword.draft._context import DraftContext
from foreword.draft._table import ContextTable, follow, keys_of
from foreword.draft.recycle import BASE, TRUST, shares_of
from foreword.errors import ConfigError
from foreword.sample.rows import NumpyRows
from foreword.sample.sampler import GumbelSampler
from foreword.types import DraftTree, Outcome, Request, SamplingParams, Verdict


def drafter(depth=15, learning=True, bigrams=None, **options):
    context = DraftContext(depth, VOCAB, learning=learning)
    return recycle.RecycleDrafter(recycle.Config(**options), context, bigrams or _bigrams.empty())


def row(**likely):
    """Logits with the given ids on top: row(_7=3.0)."""
    logits = np.full(VOCAB, -20.0, dtype=np.float32)
    for name, logit in likely.items():
        logits[int(name[1:])] = logit
    return logits


def verified(made, sequence, tree, rows, emitted):
    """Commit `emitted` after a tree whose rows the target computed."""
    sequence.token_ids += emitted
    verdict = Verdict(tuple(emitted), (), 0, False)
    made.observe([Outcome(sequence, tree, verdict, np.stack(rows))])


def children(trie, parent=-1):
    return {trie.tokens[n]: n for n, above in enumerate(trie.parents) if above == parent}


def test_rows_of_rejected_nodes_are_learned_too():
    """Root 3; drafted 4 and below it 5, both refused. Later the text comes to 4."""
    made, sequence = drafter(), new_sequence("s", [1, 2, 3])
    tree = DraftTree((3, 4, 5), (-1, 0, 1), ("", "x", "x"))
    verified(made, sequence, tree, [row(_9=9.0), row(_6=9.0), row(_7=9.0)], [9])
    sequence.token_ids += [4]
    [trie] = made.propose([sequence], [8])
    assert trie.tokens[0] == 6
    assert trie.evidence[0] == 16  # one token of context, best rank


def test_the_longest_known_context_answers():
    made, sequence = drafter(), new_sequence("s", [1, 2, 3])
    verified(made, sequence, DraftTree.root(3), [row(_10=9.0)], [4])  # after 1 2 3
    other = new_sequence("o", [9, 9, 3])
    verified(made, other, DraftTree.root(3), [row(_11=9.0)], [4])  # after 9 9 3
    for history, best, size in (([1, 2, 3], 10, 3), ([5, 9, 3], 11, 2), ([5, 5, 3], 11, 1)):
        [trie] = made.propose([new_sequence("n", history)], [4])
        assert (trie.tokens[0], trie.evidence[0]) == (best, 16 * size)


def test_contexts_run_along_the_path_not_along_the_rows():
    """The second child of the root follows the root, not its sibling."""
    made, sequence = drafter(), new_sequence("s", [1, 2, 3])
    tree = DraftTree((3, 4, 5), (-1, 0, 0), ("", "x", "x"))
    verified(made, sequence, tree, [row(_9=9.0), row(_6=9.0), row(_7=9.0)], [9])
    [trie] = made.propose([new_sequence("n", [2, 3, 5])], [4])
    assert (trie.tokens[0], trie.evidence[0]) == (7, 48)
    [trie] = made.propose([new_sequence("n", [3, 4, 5])], [4])
    assert trie.evidence[0] == 16  # 4 5 was never a context


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_scores_are_shares_lowered_by_the_context(temperature):
    """Two tokens of context, three ids with anything to them."""
    made = drafter(depth=1, shared_noise=False)
    source = new_sequence("s", [1, 2])
    verified(made, source, DraftTree.root(2), [row(_4=2.0, _5=1.0, _6=0.0)], [4])
    [trie] = made.propose([new_sequence("n", [1, 2], temperature=temperature)], [3])
    shares = np.exp(np.array([2.0, 1.0, 0.0]) / (temperature or 1.0))
    assert trie.tokens == [4, 5, 6]
    assert trie.scores == pytest.approx(TRUST[2] * shares / shares.sum(), rel=1e-3)
    assert trie.evidence == [32, 33, 34]


def test_a_row_with_one_id_left_is_sure_of_it():
    logits = np.array([[3.0, -np.inf], [-np.inf, -np.inf]], np.float32)
    assert shares_of(logits).tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_the_best_first_nodes_are_the_ones_of_highest_reach():
    """Against expanding everything."""
    numbers = np.random.default_rng(3)
    made, sequence = drafter(depth=4, width=4), new_sequence("s", [0])
    for token in range(VOCAB):
        source = new_sequence(f"s{token}", [token])
        logits = numbers.normal(0, 2, VOCAB).astype(np.float32)
        verified(made, source, DraftTree.root(token), [logits], [0])
    [trie] = made.propose([sequence], [24])
    reaches = []
    for parent, score in zip(trie.parents, trie.scores, strict=True):
        reaches.append(score * (reaches[parent] if parent >= 0 else 1.0))
    [everything] = made.propose([sequence], [4 + 16 + 64 + 256])
    whole = []
    for parent, score in zip(everything.parents, everything.scores, strict=True):
        whole.append(score * (whole[parent] if parent >= 0 else 1.0))
    assert sorted(reaches) == pytest.approx(sorted(whole)[-24:])
    assert reaches == sorted(reaches, reverse=True)


def test_a_row_with_nan_teaches_nothing_and_breaks_nothing():
    made, sequence = drafter(), new_sequence("s", [1, 2, 3])
    verified(made, sequence, DraftTree.root(3), [np.full(VOCAB, np.nan, np.float32)], [4])
    assert len(made.propose([new_sequence("n", [1, 2, 3])], [4])[0]) == 0


@given(st.lists(st.tuples(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(0, 9))))
def test_the_table_is_a_dictionary_of_the_last_rows(lessons):
    """Against a list searched from its end: only the last `capacity` lessons count."""
    capacity = 6
    table = ContextTable(capacity)
    for history, answer in lessons:
        table.learn([keys_of(history, BASE)], [([answer], [1.0])])
    for asked in ([0], [1, 2], [3, 4, 5], [5, 5, 5, 5]):
        expected = None
        for size in range(min(3, len(asked)), 0, -1):
            for history, answer in reversed(lessons[-capacity:]):
                if history[-size:] == asked[-size:] and len(history) >= size:
                    expected = expected or (size, ([answer], [1.0]))
        assert table.find(keys_of(asked, BASE)) == expected
    assert len(table._places) <= 3 * capacity


@given(st.lists(st.integers(0, BASE - 2), min_size=1, max_size=6), st.integers(0, BASE - 2))
def test_keys_follow_a_history(history, token):
    assert follow(keys_of(history, BASE), token, BASE) == keys_of([*history, token], BASE)


# --- bigrams


def source(model=None, identity="tape", begin=1, **more):
    return Source(
        model or TapeModel(), lambda: tape_store(ROWS + 8), NumpyRows(), begin, identity, **more
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREWORD_CACHE", str(tmp_path))
    assert machine.cache_dir() == tmp_path
    return tmp_path


class LargeModel(TapeModel):
    """More ids than one pass asks about."""

    def logits(self, path):
        return np.random.default_rng(path[-1]).normal(0, 3, self.vocab_size).astype(np.float32)


@pytest.mark.parametrize("begin", [1, None])
def test_bigrams_are_what_the_model_says_after_each_token(cache, begin):
    model = TapeModel()
    table = source(model, begin=begin).load(60.0)
    assert table.known == VOCAB
    for token in range(VOCAB):
        logits = model.logits([token] if begin is None else [begin, token])
        best = np.argsort(-logits, kind="stable")[:WIDTH]
        assert table.ids[token].tolist() == best.tolist()
        assert np.array_equal(table.logits[token], logits[best])


def test_bigrams_stop_when_time_is_up_and_go_on_the_next_time(cache, monkeypatch):
    monkeypatch.setattr(_bigrams, "UNHURRIED", 0.0)
    seen = []
    model = LargeModel(2 * ROWS + 10)
    made = source(model, progress=lambda *words: seen.append(words))
    assert made.load(0.0).known == ROWS
    assert made.load(0.0).known == 2 * ROWS
    assert source(model, identity="another").load(0.0).known == ROWS
    whole = made.load(60.0)
    assert whole.known == 2 * ROWS + 10
    assert np.array_equal(whole.ids[5], np.argsort(-model.logits([5]), kind="stable")[:WIDTH])
    assert seen[0] == ("learning bigrams (once per model)", ROWS, 2 * ROWS + 10)
    model.num_rows.clear()
    assert made.load(60.0).known == whole.known
    assert model.num_rows == []  # read, not asked


@pytest.mark.parametrize("damage", ["cut", "other", "shape", "ids", "nan"])
def test_a_damaged_file_is_made_anew_with_a_warning(cache, monkeypatch, caplog, damage):
    monkeypatch.setattr(_bigrams, "UNHURRIED", 0.0)
    made = source()
    expected = made.load(60.0)
    [path] = (cache / "bigrams").iterdir()
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "other":
        path.write_text("not a table")
    else:
        ids, logits = expected.ids.copy(), expected.logits.copy()
        if damage == "shape":
            ids = ids[:, :3]
        elif damage == "ids":
            ids[0, 0] = VOCAB
        else:
            logits[0, 0] = np.nan
        _bigrams.write(path, Bigrams(ids, logits))
    with caplog.at_level(logging.WARNING):
        again = made.load(60.0)
    assert "is damaged" in caplog.text
    assert str(path) in caplog.text
    assert np.array_equal(again.ids, expected.ids)
    caplog.clear()
    assert made.load(60.0).known == VOCAB  # mended
    assert caplog.text == ""


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("FOREWORD_CACHE", str(blocked))
    monkeypatch.setattr(_bigrams, "UNHURRIED", 0.0)
    assert source().load(60.0).known == VOCAB


def test_bigrams_answer_where_no_context_is_known(cache):
    made = drafter(bigrams=source().load(60.0))
    [trie] = made.propose([new_sequence("s", [4, 5])], [6])
    best = np.argsort(-TapeModel().logits([1, 5]), kind="stable")
    assert trie.tokens[0] == best[0]
    assert trie.evidence[0] == 0


def test_frozen_learning_leaves_the_bigrams(cache):
    made = drafter(learning=False, bigrams=source().load(60.0), prompt_rows=9)
    before = made.propose([new_sequence("s", [1, 2, 3])], [6])
    verified(made, new_sequence("s", [1, 2, 3]), DraftTree.root(3), [row(_7=9.0)], [7])
    assert made.propose([new_sequence("s", [1, 2, 3])], [6]) == before
    assert made.prompt_rows == 0


# --- reading prompts


def test_rows_of_a_prompt_are_learned_at_their_places():
    made, sequence = drafter(prompt_rows=8), new_sequence("s", [1, 2, 3, 4])
    made.read_prompt(sequence, 1, np.stack([row(_20=9.0), row(_21=9.0)]))
    for history, best in (([1, 2], 20), ([1, 2, 3], 21)):
        [trie] = made.propose([new_sequence("n", history)], [4])
        assert (trie.tokens[0], trie.evidence[0]) == (best, 16 * len(history))


def served(path, rows, chunk=16, prompt_rows=0, prefix=False, method="recycle"):
    """Outputs, and what the drafter was given to read: (sequence, start, argmax of each row)."""
    options = {"prompt_rows": prompt_rows} if method == "recycle" else {}
    config = EngineConfig(
        str(path),
        numerics="float32",
        max_model_len=96,
        threads=1,
        cache=CacheConfig(enable_prefix_caching=prefix),
        speculative=SpeculativeConfig(method, num_speculative_tokens=6, options=options),
    )
    scheduler = dataclasses.replace(config.scheduler, max_num_batched_tokens=chunk)
    built = build(dataclasses.replace(config, scheduler=scheduler))
    read, drafter = [], built.engine.parts.drafter
    if method == "recycle":
        learn = drafter.read_prompt

        def noting(sequence, start, logits):
            read.append((sequence.id, start, logits.argmax(axis=1).tolist()))
            learn(sequence, start, logits)

        drafter.read_prompt = noting
    sequences = []
    for number in range(rows):
        params = SamplingParams(number % 2 * 0.9, 1.0, 0, 0.0, max_tokens=20)
        prompt = tuple((7 * number + 3 * place) % 400 for place in range(1 + 9 * number))
        request = Request(f"x{number}", prompt, params, seed=number, max_tokens=20)
        sequences.append(built.engine.add(request))
    while built.engine.has_work:
        built.engine.step()
    built.close()
    return [sequence.output_ids for sequence in sequences], read, sequences


@pytest.mark.parametrize("prompt_rows", [1, 5, 1000])
def test_reading_prompts_changes_no_token(tiny_path, prompt_rows):
    expected, _, _ = served(tiny_path, 5, method="none")
    got, read, sequences = served(tiny_path, 5, prompt_rows=prompt_rows)
    assert got == expected
    for sequence in sequences:
        places = [
            start + row
            for name, start, rows in read
            if name == sequence.id
            for row in range(len(rows))
        ]
        last = sequence.num_prompt - 1
        assert places == list(range(max(0, last - prompt_rows), last))


def test_a_row_that_is_read_says_what_the_target_says_there(tiny_path):
    """The prompt cut after that token, decoded greedily, begins with the row's best id."""
    _, read, sequences = served(tiny_path, 3, prompt_rows=1000)
    checked = 0
    for name, start, best in read:
        [sequence] = [sequence for sequence in sequences if sequence.id == name]
        for offset, token in enumerate(best):
            place = start + offset
            if place % 5 == 0:
                checked += 1
                assert greedy(tiny_path, sequence.request.prompt_ids[: place + 1]) == token
    assert checked >= 4


def greedy(path, prompt):
    config = EngineConfig(str(path), numerics="float32", max_model_len=96, threads=1)
    plain = SpeculativeConfig("none")
    built = build(dataclasses.replace(config, speculative=plain))
    params = SamplingParams(0.0, 1.0, 0, 0.0, max_tokens=1)
    sequence = built.engine.add(Request("g", tuple(prompt), params, seed=0, max_tokens=1))
    while built.engine.has_work:
        built.engine.step()
    built.close()
    return sequence.output_ids[0]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"width": 0}, "width must be a whole number 1 to 16"),
        ({"width": 17}, "width must be a whole number 1 to 16"),
        ({"capacity": 0}, "capacity must be a whole number >= 1"),
        ({"prompt_rows": -1}, "prompt_rows must be a whole number 0 to"),
        ({"cold_start": 1}, "cold_start must be true or false"),
        ({"cold_start_seconds": -1.0}, "cold_start_seconds must be a number >= 0"),
        ({"cold_start_seconds": math.inf}, "cold_start_seconds must be a number >= 0"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        recycle.Config(**options)


# --- shared noise


def picks(shared_noise, positions=60):
    """How often the first guess is what the target chooses, its row known exactly: width of all
    ids, so that nothing is left out."""
    numbers = np.random.default_rng(1)
    right = 0
    for number in range(positions):
        logits = numbers.normal(0, 1, VOCAB).astype(np.float32)
        logits[16:] = -np.inf
        made = drafter(depth=1, width=16, shared_noise=shared_noise)
        verified(made, new_sequence("t", [2]), DraftTree.root(2), [logits], [0])
        sequence = new_sequence(f"s{number}", [2], temperature=1.3)
        [trie] = made.propose([sequence], [1])
        params, state = sequence.request.params, sequence.sampler_state
        right += trie.tokens[0] == GumbelSampler().choose(logits, params, state, 0).token_id
    return right / positions


def test_shared_noise_foresees_what_the_target_chooses():
    """With the row known and all ids kept the guess is always right; without the noise, rarely."""
    assert picks(shared_noise=True) == 1.0
    assert picks(shared_noise=False) < 0.5


def test_deeper_levels_use_the_noise_of_their_own_positions():
    made = drafter(depth=3, width=16)
    numbers = np.random.default_rng(2)
    rows = {}
    for token in range(16):
        rows[token] = numbers.normal(0, 1, VOCAB).astype(np.float32)
        rows[token][16:] = -np.inf
        verified(made, new_sequence("t", [token]), DraftTree.root(token), [rows[token]], [0])
    sequence = new_sequence("s", [30, 2], output=[5, 7], temperature=1.0)
    [trie] = made.propose([sequence], [40])
    node, token = -1, 7
    for position in (2, 3, 4):
        params, state = sequence.request.params, sequence.sampler_state
        token = GumbelSampler().choose(rows[token], params, state, position).token_id
        likeliest = max(children(trie, node).values(), key=lambda n: trie.scores[n])
        assert trie.tokens[likeliest] == token
        node = likeliest


def test_rows_of_a_batch_are_read_at_once_where_they_lie_together():
    whole = np.arange(24, dtype=np.float32).reshape(6, 4)
    together = recycle.joined([whole[1:3], whole[3:4], whole[4:6]])
    assert together is not None
    assert (together == whole[1:]).all()
    assert recycle.joined([whole[1:3], whole[4:6]]) is None  # a row lies between them
    assert recycle.joined([whole[1:2], whole[2:3].copy()]) is None
    assert recycle.joined([whole[:, :2], whole[:, 2:]]) is None
    assert recycle.joined([whole[1:3]]) is None
    assert recycle.joined([]) is None  # a step that only read a prompt


def test_a_row_of_nan_does_not_keep_its_neighbours_from_learning():
    drafter = recycle.make(recycle.Config(width=2, cold_start=False), DraftContext(4, 4))
    whole = np.tile(np.array([0.0, 1.0, 2.0, 3.0], np.float32), (3, 1))
    whole[1, 2] = np.nan
    first, second, third = drafter._highest([whole[:1], whole[1:2], whole[2:]])
    assert second is None
    assert first[0].tolist() == third[0].tolist() == [[3, 2]]
