"""Gumbel noise that belongs to (seed, position, id): the same on every machine, in any order.

Philox4x64-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011)
turns a key and a counter into four 64-bit words without any state. Token noise uses key = (seed,
stream), counter = (id // 4, position, 0, 0), word id % 4. Knows no logits and no temperature.

A word gives u = (its top 53 bits + 1/2) / 2^53 in float64 (the sum rounds to even from 2^52 on; the
one u that would become 1 is 1 - 2^-53) and the noise -log(-log(u)): finite, from -3.62 to 36.74.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from foreword.sample import portable
from foreword.sample.portable import Floats, Ids

Words = npt.NDArray[np.uint64]

MASK = 2**64 - 1
TOKENS, SAMPLE_SEEDS, REQUEST_SEEDS, XTC = 0, 1, 2, 3  # streams: independent decisions of a seed
ACCEPTANCE = 16  # coins of approximate acceptance

MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
ROUNDS = 10
PLAIN_IDS = 12  # up to so many ids, plain integers beat generating the words of all ids before them

LARGEST_BELOW_ONE = 1.0 - 2.0**-53


def gumbel(seed: int, position: int, ids: int | Ids) -> Floats:
    """Noise at output position `position`: float64 of ids 0 .. n-1, or of the given ids."""
    return gumbel_of(words(seed, position, ids))


def words(seed: int, position: int, ids: int | Ids) -> Words:
    """Token words, uint64, one per id: of ids 0 .. n-1, or of the given ids."""
    if isinstance(ids, int):
        return _first_words(seed, position, ids)
    if len(ids) <= PLAIN_IDS:
        return np.array([_word(seed, position, token) for token in ids.tolist()], dtype=np.uint64)
    return _first_words(seed, position, int(ids.max()) + 1)[ids]


def uniform(words: Words) -> Floats:
    """float64 in (0, 1), same shape."""
    bits = (words >> np.uint64(11)).astype(np.float64)
    return np.minimum((bits + 0.5) * 2.0**-53, LARGEST_BELOW_ONE)


def gumbel_of(words: Words) -> Floats:
    """float64 Gumbel noise, same shape."""
    return -portable.log(-portable.log(uniform(words)))


def derive(seed: int, index: int) -> int:
    """The seed of sample `index` >= 0 of a request: sample 0 has the request's own."""
    if index == 0:
        return seed
    return philox((seed, SAMPLE_SEEDS), (index, 0, 0, 0))[0]


def request_seed(seed: int, number: int) -> int:
    """The seed of request `number` >= 0 of an engine with a seed. A stream of its own: it is not
    the seed of another request's sample either."""
    return philox((seed, REQUEST_SEEDS), (number, 0, 0, 0))[0]


def chance(seed: int, stream: int, position: int) -> float:
    """A uniform number in (0, 1) for one decision at an output position."""
    word = philox((seed, stream), (0, position, 0, 0))[0]
    return float(uniform(np.array([word], dtype=np.uint64))[0])


def coin(seed: int, position: int, number: int, since: int) -> float:
    """A number in (0, 1) for approximate acceptance, independent of the noise of tokens and of the
    coin of any other (position, number, since); all >= 0."""
    word = philox((seed, ACCEPTANCE), (number, position, since, 0))[0]
    return min(((word >> 11) + 0.5) * 2.0**-53, LARGEST_BELOW_ONE)


def fresh_seed() -> int:
    """A seed in 0 .. 2**64 - 1 from the operating system, for requests that bring none."""
    return secrets.randbits(64)


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """One Philox4x64-10 block: four 64-bit words, as plain integers."""
    a, b, c, d = counter
    left, right = key
    for _ in range(ROUNDS):
        first, second = a * MULTIPLIERS[0], c * MULTIPLIERS[1]
        a, b = (second >> 64) ^ b ^ left, second & MASK
        c, d = (first >> 64) ^ d ^ right, first & MASK
        left, right = (left + WEYL[0]) & MASK, (right + WEYL[1]) & MASK
    return a, b, c, d


def _word(seed: int, position: int, token: int) -> int:
    return philox((seed, TOKENS), (token // 4, position, 0, 0))[token % 4]


def _first_words(seed: int, position: int, count: int) -> Words:
    """Words of ids 0 .. count-1. NumPy's generator steps its 256-bit counter before each block, so
    it starts one short of (0, position, 0, 0)."""
    start = ((position << 64) - 1) % 2**256
    generator = np.random.Philox(counter=start, key=seed | TOKENS << 64)
    raw: Words = generator.random_raw(count)
    return raw
