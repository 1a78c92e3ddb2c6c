"""Guessed shares under the target's own noise: whose turn it is can be told before asking it."""

from __future__ import annotations

import numpy as np
import pytest

from foreword.draft._noise import under_noise
from foreword.sample import noise


def test_the_likeliest_is_the_arg_max_of_share_and_noise():
    shares = [0.5, 0.3, 0.15, 0.05]
    others_won = 0
    for position in range(200):
        heights = noise.gumbel(5, position, 4)
        chances = under_noise(shares, heights.tolist(), 0.0)
        assert sum(chances) == pytest.approx(1.0)
        assert int(np.argmax(chances)) == int(np.argmax(np.log(shares) + heights))
        others_won += int(np.argmax(chances)) > 0
    assert 60 < others_won < 140  # about half: the noise decides


def test_chances_say_how_often_the_candidate_wins_against_the_rest():
    """Three known shares and 60 unknown ids that share the rest: wherever the first is said to win
    with 70 % or more, it does at least that often; below 30 %, at most (3 sigma, fixed seeds)."""
    shares, rest = [0.4, 0.2, 0.1], 0.3
    whole = np.array([*shares, *[rest / 60] * 60])
    sure, unsure = [], []
    for position in range(3000):
        heights = noise.gumbel(9, position, len(whole))
        won = int(np.argmax(np.log(whole) + heights)) == 0
        chance = under_noise(shares, heights[:3].tolist(), rest)[0]
        if chance >= 0.7:
            sure.append(won)
        elif chance <= 0.3:
            unsure.append(won)
    assert min(len(sure), len(unsure)) > 400
    assert np.mean(sure) > 0.7
    assert np.mean(unsure) < 0.3


def test_without_any_share_nothing_changes():
    assert under_noise([0.0, 0.0], [1.0, 2.0], 0.0) == [0.0, 0.0]
