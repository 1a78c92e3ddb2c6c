"""The prefix index alone: what enters a key, one entry per key, eviction order."""

from __future__ import annotations

import itertools

import pytest

from foreword.kv.prefix import PrefixIndex


def key_of(identity: str, salt: str, *blocks: list[int]) -> bytes:
    key = PrefixIndex(identity).root(salt)
    for block in blocks:
        key = PrefixIndex.extend(key, block)
    return key


def test_every_part_of_a_key_counts() -> None:
    keys = [
        key_of("m", ""),
        key_of("m", "", [1, 2]),
        key_of("m", "", [2, 1]),
        key_of("m", "", [1], [2]),
        key_of("m", "", [1, 2], [1, 2]),
        key_of("m", "s", [1, 2]),
        key_of("ms", "", [1, 2]),
        key_of("", "ms", [1, 2]),
        key_of("m", "", [258]),
        key_of("m", "", [1, 2], [3]),
        key_of("m", "", [9, 2], [3]),
    ]
    for one, other in itertools.combinations(keys, 2):
        assert one != other


def test_keys_are_the_same_in_every_process() -> None:
    """SHA-256 over little-endian int64: no per-process seed, no machine byte order."""
    assert key_of("m", "s", [1, 2]).hex() == GOLDEN
    assert key_of("m", "s", [1, 2]) == key_of("m", "s", [1, 2])


GOLDEN = "1cf512dbd905ec3cf94029c239cc07e60e990aca47e62f19a0ca504df151a3f6"


def test_the_first_page_of_a_key_stays_listed() -> None:
    index = PrefixIndex("m")
    index.insert(b"a", 1)
    index.insert(b"a", 2)
    index.insert(b"b", 1)
    assert index.find(b"a") == 1
    assert index.find(b"b") is None
    assert 1 in index
    assert 2 not in index
    index.check()


def test_the_page_parked_longest_is_evicted_first() -> None:
    index = PrefixIndex("m")
    for page in (1, 2, 3):
        index.insert(bytes([page]), page)
        index.park(page)
    index.unpark(1)
    index.park(1)
    assert list(index.idle) == [2, 3, 1]
    index.forget(3)
    assert index.num_idle == 2
    assert [index.evict(), index.evict()] == [2, 1]
    assert [index.find(bytes([page])) for page in (1, 2, 3)] == [None, None, None]
    index.check()


def test_forget_of_an_unlisted_page_is_fine_and_parking_one_is_a_bug() -> None:
    index = PrefixIndex("m")
    index.forget(5)
    with pytest.raises(AssertionError, match="page 5 is not listed"):
        index.park(5)
