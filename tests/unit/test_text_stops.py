"""Stop strings: where the text ends, and how little is withheld before that."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, strategies

import text_vocabularies as vocabularies
from foreword.errors import RequestError
from foreword.text.stops import StopWatch, split_stops
from foreword.text.stream import TextStream
from foreword.types import SamplingParams


def specification(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The slow definition: try every end, in order; the longest stop that ends there."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(deltas: list[str], stops: list[str]) -> tuple[list[str], StopWatch]:
    watch = StopWatch(stops)
    return [*(watch.push(delta) for delta in deltas), watch.flush()], watch


@pytest.mark.parametrize("stop", ["red green", "d gre", "en g"])
def test_v21_stop_over_several_tokens(stop: str):
    """V21: 'blue red green gold', SmolLM2's own tokens; nothing of the stop is ever shown."""
    smollm2 = vocabularies.smollm2()
    text = "blue red green gold"
    stream = TextStream(smollm2, [19556], [stop])
    shown = ""
    for count, token in enumerate(smollm2.encode(text), 1):
        done = stream.push(token)
        shown += stream.take()
        assert done == (stop in smollm2.decode(smollm2.encode(text)[:count]))
        assert text[: text.index(stop)].startswith(shown)
        if done:
            break
    stream.finish()
    assert shown + stream.take() == stream.text == text[: text.index(stop)]
    assert stream.stop == stop


def test_v21_a_stop_may_start_and_end_inside_tokens():
    """V21: 'azy d' starts inside ' lazy' and ends inside ' dog'; three tokens of '\\nHuman:'."""
    smollm2 = vocabularies.smollm2()
    for text, stop, left in [("a lazy dog", "azy d", "a l"), ("ok\nHuman: hi", "\nHuman:", "ok")]:
        stream = TextStream(smollm2, [], [stop])
        assert any(stream.push(token) for token in smollm2.encode(text))
        stream.finish()
        assert stream.text == left


def test_v22_what_might_become_a_stop_is_released_at_the_end():
    """V22: 'XYZW' with a text that ends in 'XY': shown before the end."""
    shown, watch = run(["a", "X", "Y"], ["XYZW"])
    assert shown == ["a", "", "", "XY"]
    assert watch.stop is None
    assert watch.end == 3


def test_v22_lag_is_the_longest_matching_suffix():
    """V22: four stops, one of 200 characters: only a proper prefix of a stop is withheld."""
    stops = ["aab", "XYZW", "ab" * 100, "bbbb"]
    generator = random.Random(1)
    text = "".join(generator.choice("abXYZ ") for _ in range(2000)).replace("aab", "a b")
    watch, shown = StopWatch(stops), ""
    for count, character in enumerate(text, 1):
        shown += watch.push(character)
        if watch.stop is not None:
            break
        read = text[:count]
        held = max(
            size for stop in stops for size in range(len(stop)) if read.endswith(stop[:size])
        )
        assert shown == read[: len(read) - held]
    assert (shown + watch.flush(), watch.stop) == specification(text, stops)


@given(
    strategies.text("abc", max_size=40),
    strategies.lists(strategies.text("abc", min_size=1, max_size=5), max_size=4),
    strategies.lists(strategies.integers(0, 40), max_size=6),
)
def test_v21_v70_any_cut_of_the_text_gives_the_same_end(
    text: str, stops: list[str], cuts: list[int]
):
    """V21, V70: equal to the slow definition, however the text arrives."""
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    for deltas in ([text[a:b] for a, b in pairwise(edges)], list(text), [text]):
        shown, watch = run(deltas, stops)
        assert ("".join(shown), watch.stop) == specification(text, stops)
        assert watch.end == len("".join(shown))


def test_nothing_follows_a_stop():
    watch = StopWatch(["b"])
    assert [watch.push("ab"), watch.push("c"), watch.flush()] == ["a", "", ""]


@pytest.mark.parametrize("stop", ["", ["", "x"], ["x", ""]])
def test_v23_empty_stop_string_is_refused(stop: str | list[str]):
    """V23: a RequestError, never an empty completion. An empty string alone means no stop list."""
    with pytest.raises(RequestError, match="non-empty"):
        SamplingParams(stop=stop)


def test_v24_stop_that_is_a_special_token_becomes_an_id():
    smollm2 = vocabularies.smollm2()
    texts, ids = split_stops(smollm2, ["<|im_end|>", "END", "<|endoftext|>", "Hello"])
    assert texts == ("END", "Hello")
    assert ids == {2, 0}


def test_v73_surrogate_in_a_stop():
    with pytest.raises(RequestError, match="stop holds an unpaired surrogate"):
        split_stops(vocabularies.smollm2(), ["\ud800"])


@given(
    deltas=strategies.lists(strategies.text("ab", max_size=4), max_size=8),
    stops=strategies.lists(strategies.text("ab", min_size=1, max_size=4), max_size=3, unique=True),
    include=strategies.booleans(),
    unarmed=strategies.integers(0, 4),
)
def test_included_stops_and_stops_that_come_too_early(
    deltas: list[str], stops: list[str], include: bool, unarmed: int
) -> None:
    """Against the slow definition: the first stop that is complete at a character of an armed
    delta, wherever it began; included, nothing is ever withheld."""
    text, early = "".join(deltas), len("".join(deltas[:unarmed]))
    watch, shown = StopWatch(stops, include), []
    for place, delta in enumerate(deltas):
        shown.append(watch.push(delta, armed=place >= unarmed))
        if include and watch.stop is None:
            assert "".join(shown) == "".join(deltas[: place + 1])
    shown.append(watch.flush())
    expected: tuple[str, str | None] = (text, None)
    for end in range(early + 1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            expected = text[: end if include else end - len(longest)], longest
            break
    assert ("".join(shown), watch.stop) == expected
    assert watch.end == len(expected[0])
