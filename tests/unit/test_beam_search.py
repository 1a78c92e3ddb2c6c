"""The searches alone, against a loop written straight from their definition, on toy models."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from foreword.beam.beams import Beam, Candidate, Finished, Rules, Search
from foreword.beam.best_first import BestFirst
from foreword.beam.params import BeamSearchParams
from foreword.beam.search import BeamSearch
from foreword.errors import RequestError

Toy = Callable[[tuple[int, ...]], list[Candidate]]  # all continuations of a prefix, unordered
VOCAB = 7


def toy(seed: int, coarse: bool = False, likely_end: float = 0.0) -> Toy:
    """Continuations that depend on the whole prefix; coarse: few values, so that scores tie, 0
    among them. likely_end: how often id 0 is the best."""

    def continuations(prefix: tuple[int, ...]) -> list[Candidate]:
        rng = random.Random(f"{seed}/{prefix}")
        choices = [0.0, -0.5, -1.0, -1.0] if coarse else None
        scores = [rng.choice(choices) if choices else -rng.expovariate(1) for _ in range(VOCAB)]
        if rng.random() < likely_end:
            scores[0] = -0.1 * rng.random()
        gone = rng.randrange(VOCAB) if rng.random() < 0.2 else None  # masked
        return [(token, score) for token, score in enumerate(scores) if token != gone]

    return continuations


def drive(search: Search, model: Toy, rules: Rules) -> list[Finished]:
    """As the engine does: of each beam the first width + ends, by (score descending, id)."""
    count = rules.width + len(rules.ends)
    steps = 0
    while wanted := search.wanted():
        found = [
            sorted(model(beam.tokens), key=lambda way: (-way[1], way[0]))[:count] for beam in wanted
        ]
        search.give(found)
        steps += 1
        assert steps < 10_000
    return search.result()


def defined(model: Toy, rules: Rules) -> list[tuple[tuple[int, ...], float, float]]:
    """Beam search as Transformers 5 does it, the whole vocabulary of every beam sorted each step:
    tokens, sum, normalised, best first."""
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    complete: list[tuple[float, int, tuple[int, ...], float]] = []  # in order of completion
    for length in range(1, rules.max_tokens + 1):
        ways = []
        for place, (tokens, total) in enumerate(beams):
            ways += [(total + added, place, token, tokens) for token, added in model(tokens)]
        ways.sort(key=lambda way: (-way[0], way[1], way[2]))
        beams = []
        for rank, (total, _, token, tokens) in enumerate(ways):
            ends = token in rules.ends or length == rules.max_tokens
            if ends and rank < rules.width:
                value = total / length**rules.length_penalty
                complete.append((value, len(complete), (*tokens, token), total))
            if not ends and len(beams) < rules.width:
                beams.append(((*tokens, token), total))
        complete.sort(key=lambda one: (-one[0], one[1]))
        if not beams:
            break
        if len(complete) >= rules.width:
            long = rules.early_stopping == "never" and rules.length_penalty > 0
            hope = beams[0][1] / (rules.max_tokens if long else length) ** rules.length_penalty
            if rules.early_stopping is True or hope <= complete[rules.width - 1][0]:
                break
    return [(tokens, total, value) for value, _, tokens, total in complete[: rules.width]]


def plain(found: list[Finished]) -> list[tuple[tuple[int, ...], float, float]]:
    return [(one.beam.tokens, one.beam.score, one.normalised) for one in found]


def cases(stopping: Any) -> list[tuple[Toy, Rules]]:
    rng = random.Random(str(stopping))
    found = []
    for seed in range(150):
        ends = frozenset(rng.sample(range(VOCAB), rng.choice([0, 1, 1, 2])))
        rules = Rules(
            width=rng.randrange(1, 6),
            max_tokens=rng.randrange(1, 8),
            ends=ends,
            length_penalty=rng.choice([0.0, 0.0, 1.0, 0.6, 2.0, -0.5]),
            early_stopping=stopping,
        )
        found.append((toy(seed, seed % 2 == 1, rng.choice([0.0, 0.5])), rules))
    return found


@pytest.mark.parametrize("stopping", [True, False, "never"])
def test_beam_search_is_its_definition(stopping: Any) -> None:
    lengths = set()
    for model, rules in cases(stopping):
        found = plain(drive(BeamSearch(rules), model, rules))
        assert found == defined(model, rules), rules
        lengths |= {len(tokens) for tokens, _, _ in found}
    assert lengths >= {1, 2, 3, 4, 5, 6, 7}


def test_best_first_gives_the_outputs_of_beam_search() -> None:
    """All of them, and any number of the best, scores included, ties and masked ids among them."""
    for model, rules in cases("never"):
        expected = defined(model, rules)
        assert plain(drive(BestFirst(rules), model, rules)) == expected, rules
        some = Rules(**{**_fields(rules), "returned": 1 + len(expected) // 2})
        assert plain(drive(BestFirst(some), model, some)) == expected[: some.returned], some


def test_best_first_expands_fewer() -> None:
    """At length penalty 0 and without ties never more than beam search, and together fewer; for the
    single best output, far fewer."""
    beam = first = single = 0
    for model, rules in cases("never")[::2]:
        fields = {**_fields(rules), "length_penalty": 0.0}
        rules, one = Rules(**fields), Rules(**{**fields, "returned": 1})
        searches = BeamSearch(rules), BestFirst(rules), BestFirst(one)
        for search in searches:
            drive(search, model, rules)
        counts = [search.num_expansions for search in searches]
        assert counts[0] >= counts[1] >= counts[2]
        beam, first, single = beam + counts[0], first + counts[1], single + counts[2]
    assert first < 0.95 * beam
    assert single < 0.6 * beam


def _fields(rules: Rules) -> dict[str, Any]:
    return {name: getattr(rules, name) for name in rules.__slots__}


def test_ties_go_to_the_lower_beam_then_the_lower_id() -> None:
    rules = Rules(2, 2, frozenset())
    search = BeamSearch(rules)
    search.give([[(3, -1.0), (5, -1.0)]])
    assert [beam.tokens for beam in search.wanted()] == [(3,), (5,)]
    search.give([[(4, -1.0), (6, -2.0)], [(1, -1.0), (2, -1.0)]])
    assert [one.beam.tokens for one in search.result()] == [(3, 4), (5, 1)]


def test_a_score_is_the_sum_from_left_to_right() -> None:
    beam = Beam()
    for added in (-1.0, -1e-16, -1e-16):
        beam = beam.then(1, added)
    assert beam.score == -1.0 != -(1.0 + 2e-16)
    assert beam.added == (-1.0, -1e-16, -1e-16)


def test_an_end_beyond_the_width_is_no_output_and_takes_no_place() -> None:
    rules = Rules(2, 5, frozenset({0}), early_stopping="never")
    search = BeamSearch(rules)
    search.give([[(1, -0.1), (2, -0.2), (0, -0.3)]])
    assert [beam.tokens for beam in search.wanted()] == [(1,), (2,)]
    search.give([[(0, -0.1), (3, -5.0), (4, -6.0)], [(0, -0.4), (3, -0.5), (4, -7.0)]])
    assert [beam.tokens for beam in search.wanted()] == [(2, 3), (1, 3)]
    assert [one.beam.tokens for one in search.result()] == [(1, 0), (2, 0)]


def test_beams_without_a_way_on_end_the_search() -> None:
    for search in (BeamSearch(Rules(2, 5, frozenset())), BestFirst(Rules(2, 5, frozenset()))):
        search.give([[]])
        assert search.wanted() == []
        assert search.result() == []


BAD: list[tuple[str, dict[str, Any]]] = [
    ("beam_width", {"beam_width": 0}),
    ("beam_width", {"beam_width": 129}),
    ("beam_width", {"beam_width": True}),
    ("n", {"n": 5}),
    ("temperature", {"temperature": 0.7}),
    ("length_penalty", {"length_penalty": "1"}),
    ("length_penalty", {"length_penalty": float("nan")}),
    ("length_penalty", {"length_penalty": 9.0}),
    ("early_stopping", {"early_stopping": "always"}),
    ("early_stopping", {"early_stopping": 1}),
    ("early_stopping", {"best_first": True}),
    ("best_first", {"best_first": "yes", "early_stopping": "never"}),
    ("max_tokens", {"max_tokens": 0}),
    ("stop_token_ids", {"stop_token_ids": [-1]}),
]


@pytest.mark.parametrize(("name", "fields"), BAD, ids=str)
def test_bad_parameters_are_refused_by_name(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        BeamSearchParams(**{"beam_width": 4, **fields})
    assert refused.value.parameter == name
    assert name in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {3: 1.0}),
        ("repetition_penalty", 0.9),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("logits_processors", [lambda ids, row: row]),
    ],
)
def test_best_first_refuses_what_may_raise_a_score(name: str, value: Any) -> None:
    fields = {"beam_width": 2, "early_stopping": "never", name: value}
    beam = BeamSearchParams(**fields)
    beam.check_monotone(beam.sampling())
    best = BeamSearchParams(**fields, best_first=True)
    with pytest.raises(RequestError, match=name):
        best.check_monotone(best.sampling())
