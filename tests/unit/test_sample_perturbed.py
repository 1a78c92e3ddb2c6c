"""The fast arg-max equals the definition: same ids, same float64 scores, on ordinary and on
adversarial rows. The definition is computed here by the portable functions over every id."""

from __future__ import annotations

import numpy as np
import pytest

from foreword.sample import noise, perturbed

VOCAB = 700  # above DIRECT, so the shortcut is what runs


def definition(row: np.ndarray, words: np.ndarray, temperature: float, count: int):
    scores = row.astype(np.float64) + temperature * noise.gumbel_of(words)
    order = sorted(range(len(row)), key=lambda token: (-scores[token], token))
    order = [token for token in order if row[token] > -np.inf][:count]
    return order, [float(scores[token]) for token in order]


def assert_same(row: np.ndarray, words: np.ndarray, temperature: float, count: int) -> None:
    ids, scores = perturbed.strongest(row, words, temperature, count)
    assert (ids.tolist(), scores.tolist()) == definition(row, words, temperature, count)


def rows(rng: np.random.Generator, kind: str) -> np.ndarray:
    if kind == "flat":
        return np.zeros(VOCAB, dtype=np.float32)
    if kind == "normal":
        return rng.normal(0, 3, VOCAB).astype(np.float32)
    if kind == "peaked":
        row = rng.normal(0, 1, VOCAB)
        row[rng.integers(0, VOCAB, 3)] += rng.uniform(5, 15)
        return row.astype(np.float32)
    if kind == "quantised":  # many equal logits
        return np.round(rng.normal(0, 2, VOCAB) * 2).astype(np.float32) / 2
    if kind == "masked":
        row = rng.normal(0, 3, VOCAB).astype(np.float32)
        row[rng.random(VOCAB) < 0.9] = -np.inf
        row[5] = 0.0
        return row
    if kind == "huge":
        return (rng.normal(0, 1, VOCAB) * 1e4).astype(np.float32)
    assert kind == "extreme"
    return rng.choice(np.array([-3.4e38, -1e30, 0, 1e30, 3.4e38], dtype=np.float32), VOCAB)


KINDS = ["flat", "normal", "peaked", "quantised", "masked", "huge", "extreme"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1e-45, 1e-5, 0.3, 1.0, 2.0, 1e6])
def test_fast_equals_definition(kind: str, temperature: float) -> None:
    rng = np.random.default_rng([KINDS.index(kind), int(temperature * 1000) % 2**31])
    for position in range(60):
        words = noise.words(9, position, VOCAB)
        assert_same(rows(rng, kind), words, temperature, 1)


@pytest.mark.parametrize("count", [2, 5, 64, 699, 700, 900])
def test_fast_equals_definition_for_several(count: int) -> None:
    rng = np.random.default_rng(count)
    for kind in KINDS:
        assert_same(rows(rng, kind), noise.words(1, count, VOCAB), 0.8, count)


def near_ties(rng: np.random.Generator, words: np.ndarray, temperature: float) -> np.ndarray:
    """Logits that cancel the noise: every perturbed score is 10 up to float32 rounding."""
    return (10.0 - temperature * noise.gumbel_of(words)).astype(np.float32)


@pytest.mark.parametrize("temperature", [1e-3, 0.5, 1.0, 8.0])
def test_fast_equals_definition_when_all_scores_nearly_tie(temperature: float) -> None:
    rng = np.random.default_rng(4)
    for position in range(60):
        words = noise.words(3, position, VOCAB)
        for count in (1, 7):
            assert_same(near_ties(rng, words, temperature), words, temperature, count)


def test_exact_ties_go_to_the_lowest_id() -> None:
    words = np.repeat(noise.words(3, 0, 1), VOCAB)  # the same noise for every id
    row = np.zeros(VOCAB, dtype=np.float32)
    row[[40, 300, 699]] = 2.0
    assert perturbed.strongest(row, words, 1.0, 3)[0].tolist() == [40, 300, 699]


@pytest.mark.parametrize("word", [0, 2**64 - 1, 2**64 - 2049, 2**64 - 4097, 2**64 - 6145, 2**63])
def test_extreme_words_stay_below_their_ceiling(word: int) -> None:
    """The rarest noise, against rivals an ulp away on both sides."""
    words = np.full(VOCAB, 2**40 + 12345 << 11, dtype=np.uint64)
    words[123] = word
    edge = 5.0 + noise.gumbel_of(words[:1])[0] - noise.gumbel_of(words[123:124])[0]
    for steps in (-2, -1, 0, 1, 2):
        row = np.full(VOCAB, 5.0, dtype=np.float32)
        row[123] = np.float32(edge) + np.float32(steps) * np.spacing(np.float32(edge))
        assert_same(row, words, 1.0, 1)


def test_ceilings_bound_the_true_scores() -> None:
    rng = np.random.default_rng(8)
    for temperature in (1e-45, 1e-3, 1.0, 50.0):
        for kind in ("flat", "normal", "huge"):
            row = rows(rng, kind)
            words = noise.words(2, 2, VOCAB)
            true = row.astype(np.float64) + temperature * noise.gumbel_of(words)
            ceilings = perturbed.score_ceilings(row, words, temperature)
            reached = [perturbed.below(float(score), temperature) for score in true]
            assert (ceilings >= np.array(reached)).all()


def test_shortcut_evaluates_few_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the shortcut is for; 49,152 ids, a handful of logarithms."""
    evaluated = []
    plain = noise.gumbel_of
    monkeypatch.setattr(
        perturbed, "gumbel_of", lambda words: evaluated.append(len(words)) or plain(words)
    )
    row = np.random.default_rng(0).normal(0, 3, 49152).astype(np.float32)
    for position in range(20):
        perturbed.strongest(row, noise.words(0, position, 49152), 1.0, 1)
    assert sum(evaluated) < 20 * 2000


@pytest.mark.slow
def test_fast_equals_definition_on_whole_vocabularies() -> None:
    rng = np.random.default_rng(10)
    for position in range(300):
        row = rng.normal(0, rng.uniform(0.1, 5), 49152).astype(np.float32)
        words = noise.words(5, position, 49152)
        scores = row.astype(np.float64) + noise.gumbel_of(words)
        ids, _ = perturbed.strongest(row, words, 1.0, 1)
        assert ids.tolist() == [int(scores.argmax())]
