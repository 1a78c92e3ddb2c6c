"""`KVStore.keep`: a sequence that goes on from exactly where another left computes one row."""

from __future__ import annotations

import pytest

from kv_fakes import STORES, IntegerPool, Writer, make_store


def writer_of(num_slots: int, name: str = "paged", block_size: int = 4) -> Writer:
    return Writer(make_store(name, IntegerPool(num_slots), block_size=block_size))


def left(writer: Writer, ids: list[int], keep: bool = True) -> None:
    """A sequence computes `ids` and leaves."""
    cached = writer.begin("left", [*ids, 0])
    assert writer.run("left", ids[cached:])
    (writer.keep if keep else writer.free)("left")
    writer.check()


@pytest.mark.parametrize("length", range(1, 13))
def test_children_find_all_that_their_parent_left(length: int) -> None:
    ids = list(range(50, 50 + length))
    writer = writer_of(200)
    left(writer, ids)
    for child in ("a", "b", "c"):  # all begin before any writes, as beams of one step do
        assert writer.begin(child, [*ids, ord(child)]) == length
    for child in ("a", "b", "c"):
        assert writer.run(child, [ord(child)])
        writer.check()
    for child in ("a", "b", "c"):
        writer.keep(child)
        writer.check()
    assert writer.begin("d", [*ids, ord("b"), 9]) == length + 1
    assert writer.begin("e", [*ids, 9]) == length  # the parent's own is still there
    writer.check()


def test_what_is_freed_leaves_full_blocks_only_and_what_is_kept_another_salt_cannot_find() -> None:
    writer = writer_of(200)
    left(writer, [1, 2, 3, 4, 5, 6], keep=False)
    assert writer.begin("a", [1, 2, 3, 4, 5, 6, 7]) == 4
    writer.free("a")
    left(writer, [1, 2, 3, 4, 5, 6])
    assert writer.begin("b", [1, 2, 3, 4, 5, 6, 7]) == 6
    assert writer.begin("c", [1, 2, 3, 4, 5, 6, 7], "x") == 0
    assert writer.begin("d", [1, 2, 3, 4, 5, 6]) == 4  # the last token is always computed
    assert writer.begin("e", [1, 2, 3, 4, 5, 9, 7]) == 4  # a tail is found whole or not at all
    writer.check()


def test_of_several_tails_the_longest_that_fits_is_found() -> None:
    writer = writer_of(200)
    for ids in ([1, 2], [1, 2, 3], [1, 9, 3], [7]):
        left(writer, ids)
    found = {
        (1, 2, 3, 4): 3, (1, 2, 8, 4): 2, (1, 9, 3, 4): 3, (7, 7): 1, (1, 2, 3): 2, (8, 1): 0
    }  # fmt: skip
    for number, (ids, length) in enumerate(found.items()):
        assert writer.begin(str(number), ids) == length, ids
    writer.check()


def test_tails_are_evicted_before_full_pages() -> None:
    writer = writer_of(24)  # five pages of four
    left(writer, [1, 2, 3, 4, 5, 6])  # the full page is parked before the tail is
    assert writer.begin("a", [9]) == 0
    assert writer.run("a", range(100, 116))  # four pages: one of the two must go
    writer.check()
    assert writer.store.num_free_tokens == 4
    writer.free("a")
    assert writer.begin("b", [1, 2, 3, 4, 5, 6, 7]) == 4


def test_a_tail_gives_way_where_there_is_no_page_for_its_copy() -> None:
    """Else a sequence alone in a full store could never write its next row."""
    writer = writer_of(12)  # two pages of four
    left(writer, [1, 2, 3, 4, 5, 6])
    assert writer.begin("a", [1, 2, 3, 4, 5, 6, 7, 8]) == 6
    assert writer.store.num_free_tokens == 0
    assert writer.run("a", [7, 8])
    writer.check()
    writer.free("a")
    assert writer.store.num_free_tokens == writer.store.capacity


@pytest.mark.parametrize("name", STORES)
def test_keep_forgets_what_was_reserved_and_accepts_an_unknown_id(name: str) -> None:
    writer = writer_of(64, name)
    writer.store.keep("nobody", [])
    writer.begin("a", [1, 2, 3, 4, 5, 6])
    writer.run("a", [1, 2, 3, 4, 5])
    writer.store.reserve("a", 7)
    writer.write("a", [9] * 7)
    writer.keep("a")
    writer.check()
    assert writer.store.num_free_tokens == writer.store.capacity
    assert writer.begin("b", [1, 2, 3, 4, 5, 9, 9]) == (5 if name == "paged" else 0)
    writer.check()
