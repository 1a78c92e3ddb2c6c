"""sample/form_rule.py and form_scout.py: masks against brute force, ends, and scouts that agree."""

from __future__ import annotations

import copy
import json
import random

import numpy as np
import pytest

from foreword.draft._forms import SOURCE, FormGuide
from foreword.errors import NoTokenAllowed, RequestError
from foreword.params import SamplingParams, StructuredOutput
from foreword.sample.form_rule import FormRule, RequestForm, request_form
from foreword.types import Request, Sequence, Trie
from form_rig import EOS, FORMS, NUM_IDS, TOKENIZER

WORDS = ["cat", "car", "cart", "dog", "door", "the cat", "the door", "x1", "x22"]
FINITE = {
    "choice": ({"choice": WORDS}, WORDS),
    "one": ({"choice": ["the colour of the cat"]}, ["the colour of the cat"]),
    "regex": (
        {"regex": "(ca|do){1,2}(t|or)?"},
        [a + b + c for a in ("ca", "do") for b in ("", "ca", "do") for c in ("", "t", "or")],
    ),
    "json": (
        {"json": {"enum": ["red", "reddish", 12, True, None]}},
        ['"red"', '"reddish"', "12", "true", "null"],
    ),
    "utf8": ({"regex": "é|è|日"}, ["é", "è", "日"]),
}


def form_of(asked: dict, **more) -> RequestForm:
    params = SamplingParams(structured_outputs=StructuredOutput(**asked), **more)
    form = request_form(FORMS, params, frozenset({EOS}))
    assert form is not None
    return form


def allowed(rule: FormRule, position: int) -> set[int]:
    row = np.zeros(NUM_IDS, dtype=np.float32)
    rule.apply(row, position)
    assert set(np.unique(row)) <= {0.0, -np.inf}
    return set(np.flatnonzero(row == 0.0).tolist())


def step(rule: FormRule, token: int) -> None:
    rule.advance(np.zeros(NUM_IDS, dtype=np.float32), token)


def brute_force(texts: list[str], emitted: bytes) -> set[int]:
    """Ids after which some text can still be completed, by looking at all of them."""
    left = [text.encode()[len(emitted) :] for text in texts if text.encode().startswith(emitted)]
    found = {EOS} if b"" in left else set()
    for token in range(TOKENIZER.vocab_size):
        data = TOKENIZER.token_bytes(token)
        if token not in TOKENIZER.special_ids and data:
            found |= {token for rest in left if rest.startswith(data)}
    return found


@pytest.mark.parametrize("name", FINITE)
def test_masks_are_those_of_brute_force(name):
    """Every reachable state of small languages. Where a text is forced only the tokenizer's own
    spelling may come: then the mask is one of the ids that brute force finds."""
    asked, texts = FINITE[name]
    form = form_of(asked)
    states, seen, forced = [((), b"")], 0, 0
    while states:
        path, emitted = states.pop()
        rule = form.begin()
        for position, token in enumerate(path):
            allowed(rule, position)
            step(rule, token)
        mask, every = allowed(rule, len(path)), brute_force(texts, emitted)
        seen += 1
        if mask != every:
            forced += 1
            (only,) = mask
            assert only in every
            rests = [t.encode()[len(emitted) :] for t in texts if t.encode().startswith(emitted)]
            assert EOS not in every, "not forced: it may end"
            assert all(rest.startswith(TOKENIZER.token_bytes(only)) for rest in rests)
        states += [
            ((*path, token), emitted + TOKENIZER.token_bytes(token)) for token in mask - {EOS}
        ]
    assert seen > 3
    assert forced > 0 or name in ("regex", "utf8")


def walk(form: RequestForm, seed: int, most: int = 200) -> list[int]:
    """A random text of the form; ends it as soon as it may, after some tokens."""
    rule, chance, ids = form.begin(), random.Random(seed), []
    for position in range(most):
        mask = allowed(rule, position)
        token = EOS if EOS in mask and chance.random() < 0.3 else chance.choice(sorted(mask))
        ids.append(token)
        if token == EOS:
            return ids
        step(rule, token)
    return ids


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "colour": {"enum": ["red", "green"]},
        "numbers": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    },
    "required": ["name", "colour", "numbers"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
def test_any_walk_through_the_masks_has_the_form(seed):
    ids = walk(form_of({"json": SCHEMA}), seed)
    if ids[-1] != EOS:
        pytest.fail(f"no end: {TOKENIZER.decode(ids)!r}")
    value = json.loads(TOKENIZER.decode(ids[:-1]))
    assert list(value) == list(SCHEMA["properties"])
    assert len(value["name"]) <= 9
    assert value["colour"] in ("red", "green")
    assert all(isinstance(number, int) for number in value["numbers"])


@pytest.mark.parametrize("asked", [{"json": SCHEMA}, {"choice": WORDS}], ids=["json", "choice"])
def test_forced_tokens_are_the_only_ones_that_may_come(asked):
    """Along random texts: whatever the scout calls forced is alone in the rule's mask, one token
    after the other, also when it is asked about a path ahead and had a look at wrong ones."""
    form, found = form_of(asked), 0
    for seed in range(6):
        ids = walk(form, seed)
        rule, scout = form.begin(), form.scout()
        for position, token in enumerate(ids):
            mask = allowed(rule, position)
            ahead = copy.deepcopy(rule)
            for place, only in enumerate(scout.forced(())):
                assert allowed(ahead, position + place) == {only}
                step(ahead, only)
                found += 1
            path = ids[position : position + 3]
            path = path[: path.index(EOS)] if EOS in path else path
            behind = scout.forced(path)
            assert behind == follow_up(form, ids[:position] + path)
            wrong = [one for one in range(NUM_IDS) if one not in mask][:5]
            assert all(scout.legal([one, 5]) == 0 for one in wrong if one != EOS and len(mask) > 1)
            assert scout.legal(ids[position : position + 4]) == len(ids[position : position + 4])
            step(rule, token)
            scout.follow([token])
        assert scout.num_read == len(ids)
    assert found > 0


def follow_up(form: RequestForm, ids: list[int]) -> list[int]:
    scout = form.scout()
    scout.follow(ids)
    return scout.forced(())


def test_an_end_in_a_path_is_followed_by_nothing_and_forgotten():
    scout = form_of({"choice": ["the cat", "the car"]}).scout()
    ids = TOKENIZER.encode("the cat", add_special_tokens=False)
    scout.follow(ids[:1])
    before = scout.forced(())
    assert scout.forced([*ids[1:], EOS]) == []
    assert scout.likely([*ids[1:], EOS]) == ([], [])
    assert scout.forced(()) == before
    assert scout.legal([*ids[1:], EOS, ids[0]]) == len(ids)


def test_a_scout_that_met_a_limit_or_the_end_has_no_opinion():
    form = form_of({"choice": ["cat"]})
    scout = form.scout()
    scout.follow([*TOKENIZER.encode("cat", add_special_tokens=False), EOS])
    assert scout.legal([3, 4, 5]) == 3
    assert scout.forced(()) == []
    lost = form.scout()
    lost.follow(TOKENIZER.encode("dog", add_special_tokens=False))
    assert lost.legal([3, 4, 5]) == 3
    assert lost.forced([3]) == []


# Ends ----------------------------------------------------------------------------------------


def emitted(form: RequestForm, text: str) -> tuple[FormRule, int]:
    rule, ids = form.begin(), TOKENIZER.encode(text, add_special_tokens=False)
    for token in ids:
        step(rule, token)
    return rule, len(ids)


def test_end_tokens_come_where_the_form_may_end_and_alone_where_it_must():
    rule, count = emitted(form_of({"regex": "a{1,2}"}), "a")
    mask = allowed(rule, count)
    assert EOS in mask
    assert len(mask) == 2
    rule, count = emitted(form_of({"regex": "a{1,2}"}), "aa")
    assert allowed(rule, count) == {EOS}


def test_ignored_end_tokens_come_only_when_nothing_else_can_and_go_on():
    form = form_of({"regex": "a{1,2}"}, ignore_eos=True)
    rule, count = emitted(form, "a")
    assert EOS not in allowed(rule, count)
    rule, count = emitted(form, "aa")
    for position in range(count, count + 3):
        assert allowed(rule, position) == {EOS}
        step(rule, EOS)


def test_stop_ids_that_are_no_text_end_the_form_and_others_are_text():
    stop = 1
    rule, count = emitted(form_of({"regex": "a"}, stop_token_ids=[stop, 70]), "a")
    assert allowed(rule, count) == {EOS, stop}
    rule, count = emitted(form_of({"regex": "a"}, stop_token_ids=[stop], ignore_eos=True), "a")
    assert allowed(rule, count) == {stop}


def test_a_model_without_an_end_needs_a_stop_id():
    params = SamplingParams(structured_outputs={"regex": "a"})
    with pytest.raises(RequestError, match="stop_token_ids") as caught:
        request_form(FORMS, params, frozenset())
    assert caught.value.parameter == "structured_outputs"
    params = SamplingParams(structured_outputs={"regex": "a"}, stop_token_ids=[1])
    assert request_form(FORMS, params, frozenset()) is not None
    assert request_form(FORMS, SamplingParams(), frozenset()) is None


def test_nothing_left_is_an_error_of_the_request():
    rule, count = emitted(form_of({"regex": "ab"}), "ab")
    row = np.full(NUM_IDS, 1.0, dtype=np.float32)
    row[EOS] = -np.inf  # as min_tokens does
    with pytest.raises(
        NoTokenAllowed, match=r"regex leaves no token at output position \d.*min_tok"
    ):
        rule.apply(row, count)


def test_a_token_forced_in_by_somebody_else_is_reported():
    rule, count = emitted(form_of({"regex": "ab"}), "a")
    step(rule, TOKENIZER.encode("x", add_special_tokens=False)[0])
    with pytest.raises(NoTokenAllowed, match="does not continue it"):
        allowed(rule, count + 1)


def test_a_row_of_a_later_position_or_another_width():
    rule = form_of({"regex": "a"}).begin()
    row = np.zeros(NUM_IDS, dtype=np.float32)
    rule.apply(row, 1)
    assert not row.any()
    for width in (NUM_IDS - 40, NUM_IDS + 40):
        row = np.zeros(width, dtype=np.float32)
        rule.apply(row, 0)
        assert np.flatnonzero(row == 0.0).tolist() == TOKENIZER.encode(
            "a", add_special_tokens=False
        )


def test_allowed_values_keep_their_bits():
    row = np.random.default_rng(0).standard_normal(NUM_IDS).astype(np.float32)
    row[:40] = -0.0
    masked = row.copy()
    form_of({"regex": "(?s:.*)"}).begin().apply(masked, 0)
    kept = masked != -np.inf
    assert 0 < kept.sum() < NUM_IDS
    assert masked[kept].tobytes() == row[kept].tobytes()


# Drafts --------------------------------------------------------------------------------------


def sequence_of(asked: dict | None, text: str = "") -> Sequence:
    form = None if asked is None else form_of(asked)
    request = Request("0", (5, 6), SamplingParams(), 0, frozenset({EOS}), 99, grammar=form)
    return Sequence(request, [5, 6, *TOKENIZER.encode(text, add_special_tokens=False)])


def trie_of(*texts: str) -> Trie:
    trie = Trie()
    for text in texts:
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        trie.add_chain(ids, [0.5] * len(ids), "ngram")
    return trie


def paths(trie: Trie) -> list[tuple[str, str]]:
    """The text from the root to each leaf, and the sources of its nodes."""
    found = []
    for leaf in range(len(trie)):
        if leaf not in trie.parents:
            node, text, sources = leaf, b"", []
            while node >= 0:
                text = TOKENIZER.token_bytes(trie.tokens[node]) + text
                sources.append(trie.sources[node])
                node = trie.parents[node]
            found.append((text.decode(), " ".join(dict.fromkeys(reversed(sources)))))
    return found


def test_what_a_form_forbids_goes_with_all_below_it():
    sequence = sequence_of({"regex": "x(cat|dog)[0-9]{3}"}, "x")
    trie = trie_of("cat12", "dox", "cart", "y123", "dog1x9")
    (fitted,) = FormGuide().fit([sequence], [trie], [50])
    texts = [text for text, _ in paths(fitted)]
    assert sorted(texts) == ["cat12", "dog1"]
    assert set(fitted.sources) <= {"ngram", SOURCE}


def test_what_a_form_forces_is_added_for_free():
    sequence = sequence_of({"choice": ["the cat", "the door: car"]}, "the")
    (fitted,) = FormGuide().fit([sequence], [trie_of(" door")], [50])
    assert paths(fitted) == [(" door: car", f"ngram {SOURCE}")]
    assert {
        fitted.scores[node] for node in range(len(fitted)) if fitted.sources[node] == SOURCE
    } == {1.0}
    (fitted,) = FormGuide().fit([sequence_of({"choice": ["the car"]})], [Trie()], [50])
    assert paths(fitted) == [("the car", SOURCE)]
    (fitted,) = FormGuide().fit([sequence_of({"choice": ["the car"]})], [Trie()], [1])
    assert len(fitted) == 1


def test_without_a_form_or_a_budget_tries_stay_as_they_are():
    trie = trie_of("cat")
    asked = {"choice": ["dog"]}
    sequences = [sequence_of(None), sequence_of(asked), sequence_of(asked)]
    fitted = FormGuide().fit(sequences, [trie, trie, trie], [9, 0, 9])
    assert fitted[0] is trie
    assert fitted[1] is trie
    assert paths(fitted[2]) == [("dog", SOURCE)]
    assert [sequence.scout is None for sequence in sequences] == [True, True, False]


def test_a_guide_follows_its_sequence():
    sequence = sequence_of({"choice": ["the cat", "the door"]})
    guide = FormGuide()
    for text in ("the", " "):
        guide.fit([sequence], [Trie()], [9])
        sequence.token_ids += TOKENIZER.encode(text, add_special_tokens=False)
    (fitted,) = guide.fit([sequence], [trie_of("cat", "x", "door")], [9])
    assert sorted(text for text, _ in paths(fitted)) == ["cat", "door"]
