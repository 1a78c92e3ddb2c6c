"""The noise is pinned: published Philox vectors, a second implementation, golden values."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from foreword.sample import noise

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "noise.json").read_text())
MASK = 2**64 - 1
PI_COUNTER = (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89)
PI_KEY = (0x452821E638D01377, 0xBE5466CF34E90C6C)

# Known answers published with the algorithm (philox4x64, 10 rounds): key, counter, words.
PUBLISHED = [
    (
        (0, 0),
        (0, 0, 0, 0),
        (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B),
    ),
    (
        (MASK, MASK),
        (MASK, MASK, MASK, MASK),
        (0x87B092C3013FE90B, 0x438C3C67BE8D0224, 0x9CC7D7C69CD777B6, 0xA09CAEBF594F0BA0),
    ),
    (
        PI_KEY,
        PI_COUNTER,
        (0xA528F45403E61D95, 0x38C72DBD566E9788, 0xA5A1610E72FD18B5, 0x57BD43B5E52B7FE6),
    ),
]


def second_philox(key: list[int], counter: list[int]) -> list[int]:
    """Philox4x64-10 from the paper's text: per round a multiply-and-swap of two lanes."""
    key, lanes = list(key), list(counter)
    for turn in range(10):
        if turn:
            key = [(key[0] + 0x9E3779B97F4A7C15) % 2**64, (key[1] + 0xBB67AE8584CAA73B) % 2**64]
        high0, low0 = divmod(0xD2E7470EE14C6C93 * lanes[0], 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * lanes[2], 2**64)
        lanes = [high1 ^ lanes[1] ^ key[0], low1, high0 ^ lanes[3] ^ key[1], low0]
    return lanes


@pytest.mark.parametrize(("key", "counter", "words"), PUBLISHED)
def test_philox_gives_the_published_words(key, counter, words) -> None:
    assert noise.philox(key, counter) == words
    assert second_philox(key, counter) == list(words)


@pytest.mark.parametrize("seed", [0, 1, 2**63, MASK])
@pytest.mark.parametrize("position", [0, 1, 4095, 2**31])
def test_words_are_philox_of_seed_position_and_id(seed: int, position: int) -> None:
    bulk = noise.words(seed, position, 1030)
    for token in (0, 1, 2, 3, 4, 5, 1023, 1024, 1029):
        block = second_philox([seed, 0], [token // 4, position, 0, 0])
        assert int(bulk[token]) == block[token % 4]


@pytest.mark.parametrize("many", [1, 3, noise.PLAIN_IDS, noise.PLAIN_IDS + 1, 60])
def test_chosen_ids_have_the_words_of_the_whole(many: int) -> None:
    ids = np.sort(np.random.default_rng(many).choice(151936, many, replace=False))
    ids[-1] = 151935
    whole = noise.words(77, 5, 151936)
    assert noise.words(77, 5, ids).tolist() == whole[ids].tolist()
    assert noise.gumbel(77, 5, ids).tolist() == noise.gumbel_of(whole)[ids].tolist()


def test_golden_vectors_pin_u_and_gumbel() -> None:
    assert len(GOLDEN["noise"]) >= 40
    for case in GOLDEN["noise"]:
        ids = np.array(case["ids"])
        words = noise.words(case["seed"], case["position"], ids)
        assert [value.hex() for value in noise.uniform(words).tolist()] == case["u"]
        assert [value.hex() for value in noise.gumbel_of(words).tolist()] == case["gumbel"]


def test_golden_vectors_pin_derived_seeds() -> None:
    assert len(GOLDEN["derive"]) >= 15
    for case in GOLDEN["derive"]:
        assert noise.derive(case["seed"], case["index"]) == case["derived"]


def test_golden_gumbel_is_minus_log_minus_log_u() -> None:
    for case in GOLDEN["noise"]:
        for u, gumbel in zip(case["u"], case["gumbel"], strict=True):
            right = -math.log(-math.log(float.fromhex(u)))
            assert math.isclose(float.fromhex(gumbel), right, rel_tol=1e-12, abs_tol=1e-15)


def test_extreme_words_give_finite_noise() -> None:
    words = np.array([0, MASK, MASK - 2048, MASK - 4096, 2**63], dtype=np.uint64)
    u = noise.uniform(words)
    assert u[0] == 2.0**-54
    assert u[1] == 1.0 - 2.0**-53  # (2^53 - 1 + 1/2) / 2^53 would round to 1
    assert u[4] == 0.5  # ties to even: 2^52 + 1/2
    assert np.isfinite(noise.gumbel_of(words)).all()


def test_u_is_top_53_bits_and_a_half() -> None:
    for word in (0, 2**11 - 1, 2**11, 123456789 << 20, (2**51 + 12345) << 11):
        expected = ((word >> 11) + 0.5) / 2.0**53
        assert noise.uniform(np.array([word], dtype=np.uint64))[0] == expected


def test_derive_keeps_sample_zero_and_separates_the_others() -> None:
    for seed in (0, 7, 2**63, MASK):
        derived = [noise.derive(seed, index) for index in range(128)]
        assert derived[0] == seed
        assert len(set(derived)) == 128
        assert all(0 <= value <= MASK for value in derived)


def test_derived_seeds_do_not_reuse_token_words() -> None:
    assert noise.derive(7, 1) not in noise.words(7, 0, 4096).tolist()


def test_neighbouring_seeds_positions_and_ids_share_nothing() -> None:
    """A shared stream would show as equal words; 4 x 2,000 distinct ones cannot be luck."""
    runs = [noise.words(seed, position, 2000) for seed in (5, 6) for position in (8, 9)]
    assert len(set(np.concatenate(runs).tolist())) == 8000


def test_fresh_seeds_differ_and_fit() -> None:
    seeds = {noise.fresh_seed() for _ in range(20)}
    assert len(seeds) == 20  # a repeat: 190 pairs / 2^64
    assert all(0 <= seed <= MASK for seed in seeds)
    assert max(seeds) > 2**56  # all 20 below: 2^-160


def test_numpy_global_state_is_not_touched() -> None:
    before = np.random.get_state()[1].tolist()
    noise.gumbel(1, 2, 100)
    assert np.random.get_state()[1].tolist() == before
