"""Prefix reuse of kv/paged.py: committed full blocks, never a whole sequence, never a wrong row."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kv_fakes import IntegerPool, Writer, make_store


def writer_of(num_slots: int, block_size: int = 4, **options: Any) -> Writer:
    return Writer(make_store("paged", IntegerPool(num_slots), block_size=block_size, **options))


def prefill(writer: Writer, name: str, ids: list[int], chunk: int = 1000, salt: str = "") -> int:
    """Attach what is cached and compute the rest in chunks; returns the attached length."""
    cached = writer.begin(name, ids, salt)
    for start in range(cached, len(ids), chunk):
        assert writer.run(name, ids[start : start + chunk])
    writer.check()
    return cached


def once(writer: Writer, ids: list[int], salt: str = "") -> int:
    """A request that comes, computes and leaves; returns the attached length."""
    cached = prefill(writer, "once", ids, salt=salt)
    writer.free("once")
    writer.check()
    return cached


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("seed", range(3))
def test_v53_hits_in_a_fragmented_pool_read_the_right_slots(block_size: int, seed: int) -> None:
    """V53: 30 requests over a prefix tree of depth 4, random order, K=4, pages recycled."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    stems = [[rng.randrange(500) for _ in range(20)] for _ in range(8)]
    writer = writer_of(20 * block_size + 160, block_size)
    for number in range(30):
        ids = [token for _ in range(4) for token in rng.choice(stems[:2] if number % 2 else stems)]
        name = f"r{number}"
        cached = writer.begin(name, ids)
        while not writer.run(name, ids[cached:]):
            writer.free(rng.choice([other for other in writer.held if other != name]))
        for _ in range(rng.randrange(6)):  # decode with K = 4, any number accepted
            writer.run(name, [rng.randrange(500) for _ in range(5)], range(rng.randrange(1, 6)))
        writer.check()
        if rng.random() < 0.6:
            writer.free(rng.choice(list(writer.held)))
            writer.check()
    assert writer.store.prefix_hits > 0


def test_v54_rejected_drafts_are_not_in_the_cache() -> None:
    """V54: drafts that would fill a block are rejected; the next turn must not find them."""
    writer = writer_of(64)
    prefill(writer, "a", [1, 2, 3])
    writer.run("a", [4, 9, 9, 9, 9, 9], path=[0])  # the block [1, 2, 3, 4] is full and committed
    writer.check()
    writer.free("a")
    assert once(writer, [1, 2, 3, 4, 9, 9, 9, 9, 9]) == 4
    assert once(writer, [1, 2, 3, 9, 9]) == 0


def test_v54_an_abort_in_the_middle_of_a_pass_leaves_nothing_behind() -> None:
    """V54: reserved and written, never committed; the resent request starts from what was."""
    writer = writer_of(64)
    prefill(writer, "a", [1, 2, 3, 4, 5])
    writer.store.reserve("a", 8)
    writer.write("a", [6, 7, 8, 9, 10, 11, 12, 13])
    writer.free("a")
    writer.check()
    assert once(writer, list(range(1, 14))) == 4


def test_v54_rows_behind_the_last_committed_token_are_not_listed() -> None:
    """V54: tokens past the end of a request never enter the cache, full block or not."""
    writer = writer_of(64)
    prefill(writer, "a", [1, 2, 3, 4])
    writer.run("a", [5, 6, 7, 8, 9], path=[0, 1, 2])  # 8 and 9 were drafted behind the end
    writer.free("a")
    assert once(writer, list(range(1, 12))) == 4


EDGES = (1, 15, 16, 17, 31, 32, 33, 48)


@pytest.mark.parametrize(("cached", "total"), list(itertools.product((0, *EDGES), EDGES)))
def test_v55_a_hit_always_leaves_a_token_to_compute(cached: int, total: int) -> None:
    """V55: all pairs around a chunk of 16; a fully cached prompt computes at least one token."""
    for block_size in (1, 4, 16):
        writer = writer_of(160, block_size)
        ids = list(range(60))
        if cached:
            once(writer, ids[:cached])
        attached = prefill(writer, "b", ids[:total], chunk=16)
        assert attached == min(cached, total - 1) // block_size * block_size
        assert attached < total


@pytest.mark.parametrize("caching", [True, False])
def test_v56_a_cold_prefill_in_chunks_is_right_with_and_without_a_cache(caching: bool) -> None:
    """V56: a nonce in front keeps each of 20 prompts cold; three chunks, then drafted tokens."""
    writer = writer_of(200, 4, enable_prefix_caching=caching)
    for nonce in range(20):
        cached = prefill(writer, "a", [1000 + nonce, *range(40)], chunk=16)
        assert cached == 0
        for _ in range(5):
            writer.run("a", [5, 6, 7, 8, 9], path=[0, 1, 2])
            writer.check()
        writer.free("a")
    assert writer.store.prefix_hits == 0


def test_v57_every_repeat_hits_and_eviction_pressure_only_costs_work() -> None:
    """V57: first, second and third run, then after others needed the room."""
    writer = writer_of(44)  # 10 pages
    ids = list(range(21))
    assert [once(writer, ids) for _ in range(3)] == [0, 20, 20]
    assert (writer.store.prefix_queries, writer.store.prefix_hits) == (63, 40)
    once(writer, list(range(100, 140)))
    assert once(writer, ids) == 0
    assert once(writer, ids) == 20


def test_a_blocked_sequence_does_not_count_in_the_hit_rate() -> None:
    """The scheduler asks again in each step until there is room."""
    writer = writer_of(44)
    once(writer, list(range(9)))
    before = (writer.store.prefix_queries, writer.store.prefix_hits)
    for _ in range(5):
        writer.begin("a", list(range(9)))
        writer.free("a")
    assert (writer.store.prefix_queries, writer.store.prefix_hits) == before


def test_least_recently_used_goes_first_and_from_its_end() -> None:
    writer = writer_of(44)  # 10 pages
    for ids in (range(12), range(100, 112), range(12)):  # a, b, a again: 3 pages each
        once(writer, list(ids))
    prefill(writer, "big", list(range(200, 220)))  # 5 pages: 4 free ones and the end of b
    assert writer.begin("a", list(range(13))) == 12
    assert writer.begin("b", list(range(100, 113))) == 8
    writer.check()


def test_two_sequences_that_compute_one_block_at_once_keep_one_entry() -> None:
    writer = writer_of(44)
    for name in "ab":
        writer.begin(name, [1, 2, 3, 4, 5])
    for name in "ab":
        writer.run(name, [1, 2, 3, 4, 5])
    writer.check()
    writer.free("a")
    writer.free("b")
    writer.check()
    assert writer.store.num_free_tokens == writer.store.capacity
    assert writer.store._index.num_idle == 1
    assert once(writer, [1, 2, 3, 4, 5]) == 4


def test_a_shared_page_is_held_once_and_stays_while_anyone_uses_it() -> None:
    writer = writer_of(44)
    prefill(writer, "a", list(range(9)))
    free = writer.store.num_free_tokens
    prefill(writer, "b", list(range(9)))
    assert free - writer.store.num_free_tokens == 4  # its last page alone
    shared = writer.store.slots("a")[:8].tolist()
    assert writer.store.slots("b")[:8].tolist() == shared
    writer.free("a")
    prefill(writer, "c", list(range(100, 128)))
    writer.check()


def test_salt_and_identity_keep_prefixes_apart() -> None:
    writer = writer_of(44)
    ids = list(range(9))
    assert [once(writer, ids, salt) for salt in ("", "x", "", "x", "y")] == [0, 0, 8, 8, 0]


def test_without_prefix_caching_nothing_is_kept() -> None:
    writer = writer_of(44, enable_prefix_caching=False)
    assert [once(writer, list(range(9))) for _ in range(2)] == [0, 0]
    assert (writer.store.prefix_queries, writer.store.prefix_hits) == (0, 0)
    assert writer.store.usage == 0.0


def test_truncate_into_a_shared_page_copies_before_writing() -> None:
    writer = writer_of(44)
    once(writer, list(range(9)))
    for name in "ab":
        prefill(writer, name, list(range(9)))
    writer.truncate("a", 6)
    writer.check()
    writer.run("a", [50, 51, 52])
    writer.check()
    assert writer.store.slots("a")[4:6].tolist() != writer.store.slots("b")[4:6].tolist()
    assert once(writer, list(range(9))) == 8
    assert once(writer, [0, 1, 2, 3, 4, 5, 50, 51, 52]) == 8


def test_truncate_into_an_own_listed_page_unlists_it_before_writing() -> None:
    writer = writer_of(44)
    prefill(writer, "a", list(range(9)))
    writer.truncate("a", 6)
    writer.run("a", [50, 51, 52])
    writer.check()
    assert once(writer, list(range(9))) == 4
    assert once(writer, [0, 1, 2, 3, 4, 5, 50, 51, 52]) == 8


def test_a_copy_that_finds_no_page_is_refused_and_changes_nothing() -> None:
    writer = writer_of(24)  # 5 pages
    for name in "ab":
        prefill(writer, name, list(range(9)))
    writer.run("a", [9, 10, 11, 12])
    assert writer.store.num_free_tokens == 0
    writer.truncate("b", 6)
    writer.run("a", [13, 14, 15])
    writer.run("a", [16])
    assert writer.store.num_free_tokens == 0
    assert not writer.store.reserve("b", 1)
    writer.check()
    writer.free("a")
    assert writer.run("b", [50])
    writer.check()
