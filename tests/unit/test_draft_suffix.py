"""The automaton against brute force; which branches a suffix has, with which counts; what is shared
between running sequences and kept from finished ones."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafting import VOCAB, depths_of, new_sequence, plain
from foreword.draft import suffix
from foreword.draft._archive import Archive
from foreword.draft._automaton import COUNTED, ROOT, SuffixAutomaton
from foreword.draft._context import DraftContext
from foreword.draft._ways import TRUST
from foreword.errors import ConfigError
from foreword.types import DraftTree, Outcome, Verdict

TEXT = st.lists(st.integers(0, 3), max_size=COUNTED - 1)


def drafter(depth=15, vocab_size=1000, learning=True, **options):
    context = DraftContext(depth, vocab_size, learning=learning)
    return suffix.make(suffix.Config(**options), context)


def sequence_of(name, prompt, output=(), salt="", group=None):
    sequence = new_sequence(name, prompt, output=output)
    sequence.request = dataclasses.replace(sequence.request, salt=salt, group=group)
    return sequence


def first_level(trie):
    """token -> (score, evidence) of the root's children."""
    rows = zip(trie.parents, trie.tokens, trie.scores, trie.evidence, strict=True)
    return {token: (score, evidence) for parent, token, score, evidence in rows if parent < 0}


def finish(made, sequence):
    sequence.finish_reason = "stop"
    made.end(sequence)


def committed(made, sequence, tokens):
    sequence.token_ids += tokens
    tree = DraftTree.root(sequence.token_ids[-1])
    made.observe([Outcome(sequence, tree, Verdict(tuple(tokens), (), 0, False), None)])


def occurrences(texts):
    """How often each run of tokens occurs."""
    counts = Counter()
    for text in texts:
        for start in range(len(text)):
            counts.update(tuple(text[start:end]) for end in range(start + 1, len(text) + 1))
    return counts


@given(TEXT, TEXT)
def test_every_run_of_tokens_is_a_path_with_its_count(one, other):
    automaton = SuffixAutomaton()
    for text in (one, other):
        automaton.grow(ROOT, text)
    counts = occurrences([one, other])
    for run, count in counts.items():
        state, length = ROOT, 0
        for token in run:
            state, length = automaton.step(state, length, token)
        assert length == len(run)
        assert automaton.count[state] == count
        following = {token for token in range(4) if (*run, token) in counts}
        assert set(automaton.following[state]) == following


@given(TEXT)
def test_the_link_of_a_text_is_its_longest_earlier_suffix(text):
    automaton, state = SuffixAutomaton(), ROOT
    for end, token in enumerate(text, 1):
        state = automaton.extend(state, token)
        earlier = occurrences([text[: end - 1]])
        for start in range(1, end):
            earlier[tuple(text[start:end])] += 0
        longest = max(
            (size for size in range(end) if _ends_before(text[:end], size)),
            default=0,
        )
        assert automaton.size[automaton.link[state]] == longest


def _ends_before(text, size):
    """Does the suffix of `size` tokens end anywhere before the end?"""
    suffix_of = text[len(text) - size :]
    return any(text[end - size : end] == suffix_of for end in range(size, len(text)))


@given(TEXT, TEXT)
def test_step_finds_the_longest_known_suffix(text, read):
    automaton = SuffixAutomaton()
    automaton.grow(ROOT, text)
    counts, state, length = occurrences([text]), ROOT, 0
    for end, token in enumerate(read, 1):
        state, length = automaton.step(state, length, token)
        sizes = range(1, end + 1)
        longest = max(
            (size for size in sizes if tuple(read[end - size : end]) in counts), default=0
        )
        assert length == longest


@given(TEXT)
def test_the_latest_way_is_last(text):
    automaton, state = SuffixAutomaton(), ROOT
    for token in text:
        state = automaton.extend(state, token)
        assert next(reversed(automaton.following[ROOT])) == token


def test_ways_share_the_trust_by_their_counts():
    """After 1 2 came 3 three times and 4 once; 2 alone adds a little to both."""
    sequence = sequence_of("s", [1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 7, 1, 2, 3, 6, 1, 2])
    made = drafter()
    made.begin(sequence)
    [trie] = made.propose([sequence], [30])
    ways = first_level(trie)
    assert ways[3][0] == pytest.approx(0.75 * TRUST[2])
    assert ways[4][0] == pytest.approx(0.25 * TRUST[2])
    assert ways[3][1] == ways[4][1] == 2


def test_a_shorter_context_answers_where_the_longer_one_is_new():
    sequence = sequence_of("s", [5, 2, 3, 1, 2, 9, 8, 1, 2])
    made = drafter()
    made.begin(sequence)
    ways = first_level(made.propose([sequence], [30])[0])
    assert ways[9][1] == 2  # after 1 2
    assert ways[3][1] == 1  # after 2
    assert ways[9][0] > ways[3][0] > 0


def test_scores_rise_along_a_path_and_the_path_may_loop():
    sequence = sequence_of("s", [1, 2, 3, 1, 2, 3, 1])
    made = drafter()
    made.begin(sequence)
    [trie] = made.propose([sequence], [15])
    deepest = max(depths_of(trie))
    assert deepest >= 2
    assert trie.scores[1] >= trie.scores[0]


def test_samples_of_one_prompt_share_what_they_wrote():
    """A sibling is ahead: the other one goes on as it did, from the whole output matched."""
    made = drafter()
    ahead = sequence_of("a", [1, 2, 3], [4, 5, 6, 7], group="g")
    behind = sequence_of("b", [1, 2, 3], [4], group="g")
    for sequence in (ahead, behind):
        made.begin(sequence)
    [trie] = made.propose([behind], [3])
    assert trie.tokens == [5, 6, 7]
    assert trie.evidence[0] == 4
    committed(made, ahead, [8])
    [trie] = made.propose([behind], [4])
    assert trie.tokens == [5, 6, 7, 8]


def test_equal_prompts_of_two_salts_share_nothing():
    made = drafter()
    made.begin(sequence_of("a", [1, 2, 3], [4, 5, 6, 7], salt="x"))
    other = sequence_of("b", [1, 2, 3], [4], salt="y")
    made.begin(other)
    assert len(made.propose([other], [8])[0]) == 0


@pytest.mark.parametrize(("learning", "known"), [(True, [5, 6, 7]), (False, [])])
def test_finished_requests_are_remembered_unless_frozen(learning, known):
    made = drafter(learning=learning)
    done = sequence_of("a", [9, 3], [4, 5, 6, 7])
    made.begin(done)
    finish(made, done)
    other = sequence_of("b", [8, 8, 2], [4])
    made.begin(other)
    [trie] = made.propose([other], [8])
    assert trie.tokens == known
    assert all(evidence >= 32 for evidence in trie.evidence)


def test_preempted_and_failed_requests_are_not_remembered():
    made = drafter()
    for reason in (None, "abort", "error"):
        gone = sequence_of("a", [9, 3], [4, 5, 6, 7])
        made.begin(gone)
        gone.finish_reason = reason
        made.end(gone)
    other = sequence_of("b", [8, 8, 2], [4])
    made.begin(other)
    assert len(made.propose([other], [8])[0]) == 0


def test_a_book_that_is_full_is_closed_to_newcomers():
    made = drafter(group_tokens=5)
    for number in range(3):
        made.begin(sequence_of(f"s{number}", [1, 2, 3], [4, 5, 6]))
    books = {id(reader.book) for reader in made._readers.values()}
    assert len(books) == 3


def test_the_archive_keeps_the_last_half_at_least_and_no_more_than_its_bound():
    archive = Archive(limit=100, num_salts=2)
    for number in range(60):
        archive.add("s", [1000 + number] * 2 + [number] * 8)
        automaton = archive.of("s")
        assert automaton.num_tokens <= 109
        for recent in range(max(0, number - 4), number + 1):
            assert 1000 + recent in automaton.following[ROOT]
    assert 1000 not in archive.of("s").following[ROOT]


def test_the_archive_forgets_the_salt_used_longest_ago():
    archive = Archive(limit=100, num_salts=2)
    for salt in ("a", "b", "a", "c"):
        archive.add(salt, [1, 2])
    assert [archive.of(salt) is not None for salt in "abc"] == [True, False, True]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 20))
def test_step_by_step_equals_at_once(history, split):
    """Reading token by token or all at once makes no difference."""
    split = min(split, len(history))
    one = new_sequence("a", history[:split])
    made = drafter()
    made.begin(one)
    for token in history[split:]:
        committed(made, one, [token])
    other = new_sequence("b", history[:split], output=history[split:])
    fresh = drafter()
    fresh.begin(other)
    assert plain(made.propose([one], [20])[0]) == plain(fresh.propose([other], [20])[0])


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"shared_tokens": -1}, "shared_tokens must be a whole number 0 to"),
        ({"shared_salts": 0}, "shared_salts must be a whole number >= 1"),
        ({"group_tokens": 0}, "group_tokens must be a whole number >= 1"),
    ],
)
def test_bad_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        suffix.Config(**options)


def test_a_preempted_sequence_is_not_counted_again():
    drafter = suffix.make(suffix.Config(), DraftContext(4, VOCAB))
    one, other = (new_sequence(name, [1, 2, 3], output=[4, 5, 6]) for name in "ab")
    drafter.begin(one)
    drafter.begin(other)
    automaton = drafter._readers["a"].book.automaton
    before = automaton.num_tokens, list(automaton.count)
    for _ in range(5):
        drafter.end(one)
        drafter.begin(one)
    assert (automaton.num_tokens, list(automaton.count)) == before
