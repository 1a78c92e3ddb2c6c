"""Every store of kv/: what is gathered equals what a naive model of the sequences says."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kv_fakes import STORES, IntegerPool, TensorPool, Writer, make_store


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def random_tree(rng: random.Random, rows: int) -> tuple[list[int], list[int], list[int]]:
    """tokens, parents and the path from the root to a random node, at least the root."""
    parents = [-1] + [rng.randrange(max(0, row - 3), row) for row in range(1, rows)]
    node = rng.randrange(rows)
    path = [node]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return [rng.randrange(2) for _ in range(rows)], parents, path


class Walk:
    """Random operations on one store; few tokens and salts, so that prefixes meet often."""

    def __init__(self, writer: Writer, rng: random.Random) -> None:
        self.writer = writer
        self.rng = rng
        self.born = 0
        self.full = 0
        self.hits = 0

    def step(self) -> None:
        names = list(self.writer.held)
        action = self.rng.choice(
            ("begin", "chain", "tree", "tree", "chain", "truncate", "free", "keep")
        )
        if action == "begin" or not names:
            self.begin()
            return
        name = self.rng.choice(names)
        if action == "chain":
            tokens = [self.rng.randrange(2) for _ in range(self.rng.randrange(1, 9))]
            self.full += not self.writer.run(name, tokens)
        elif action == "tree":
            rows = self.rng.randrange(1, 9)
            tokens, parents, path = random_tree(self.rng, rows)
            if self.rng.random() < 0.3:  # an earlier, larger reservation is replaced
                self.writer.store.reserve(name, rows + self.rng.randrange(9))
            self.full += not self.writer.run(name, tokens, path, parents)
        elif action == "truncate":
            self.writer.truncate(name, self.rng.randrange(len(self.writer.held[name]) + 1))
        elif self.rng.random() < 0.5:
            (self.writer.keep if action == "keep" else self.writer.free)(name)

    def begin(self) -> None:
        ids = [self.rng.randrange(2) if self.rng.random() < 0.1 else 0 for _ in range(20)]
        ids = ids[: self.rng.randrange(1, 21)]
        self.born += 1
        name = f"s{self.born}"
        cached = self.writer.begin(name, ids, self.rng.choice(("", "x")))
        self.hits += cached > 0
        self.writer.check()
        if cached == len(ids) - 1 or not self.writer.run(name, ids[cached:-1]):
            return


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("caching", [True, False])
def test_random_operations_gather_what_a_naive_model_holds(
    name: str, block_size: int, caching: bool, seed: int
) -> None:
    print(f"seed {seed}")
    pool = TensorPool(num_slots=48 + block_size)
    store = make_store(
        name, pool, block_size=block_size, identity="m", enable_prefix_caching=caching
    )
    walk = Walk(Writer(store), random.Random(seed))
    for _ in range(200):
        walk.step()
        walk.writer.check()
    assert walk.full > 0, "the pool was never full: the walk proves nothing about it"
    if name == "paged" and caching and block_size < 16:
        assert walk.hits > 0
    for sequence_id in list(walk.writer.held):
        walk.writer.free(sequence_id)
    walk.writer.check()
    assert store.num_free_tokens == store.capacity
    assert store.usage == 0.0


@pytest.mark.parametrize("drafts", range(5))
def test_v06_a_mismatch_at_any_draft_keeps_exactly_the_accepted_rows(
    name: str, drafts: int
) -> None:
    """V06: of root + K drafts, i accepted drafts stay and nothing behind them."""
    for accepted in range(drafts + 1):
        writer = Writer(make_store(name, IntegerPool(64), block_size=4))
        writer.begin("a", [7, 8, 9])
        writer.run("a", [7, 8])
        writer.run("a", range(9, 9 + drafts + 1), path=range(accepted + 1))
        assert writer.store.length("a") == 2 + 1 + accepted
        assert len(writer.store.slots("a")) == 2 + 1 + accepted
        writer.check()


def test_v12_rows_of_a_batch_advance_by_their_own_accepted_count(name: str) -> None:
    """V12: three sequences of 5, 11 and 40 tokens, K=4, scripted ragged acceptance, 30 steps."""
    writer = Writer(make_store(name, IntegerPool(512), block_size=4))
    script = {"all": [4], "none": [0], "mixed": [2, 0, 4, 1]}
    lengths = {"all": 5, "none": 11, "mixed": 40}
    for key, length in lengths.items():
        cached = writer.begin(key, range(length))
        writer.run(key, range(cached, length - 1))
    for step in range(30):
        for key in script:
            assert writer.store.reserve(key, 5)
        for key in script:
            writer.write(key, range(5))
        for key, accepted in script.items():
            writer.commit(key, range(5), range(accepted[step % len(accepted)] + 1))
        writer.check()
    mixed = sum((2, 0, 4, 1)[step % 4] for step in range(30))
    expected = {"all": 4 + 30 * 5, "none": 10 + 30, "mixed": 39 + 30 + mixed}
    assert {key: writer.store.length(key) for key in script} == expected


def test_a_chain_is_committed_without_a_copy_and_a_tree_moves_only_what_it_must(name: str) -> None:
    pool = IntegerPool(64)
    writer = Writer(make_store(name, pool, block_size=4))
    writer.begin("a", [1])
    writer.run("a", [1, 2, 3, 4, 5, 6])
    pool.num_moved = 0
    writer.run("a", [7, 8, 9, 1], path=[0, 1, 2])
    if name == "paged":
        assert pool.num_moved == 0
    writer.run("a", [7, 8, 9, 1], path=[0, 2, 3], parents=[-1, 0, 0, 2])
    writer.check()
    if name == "paged":
        assert pool.num_moved == 2


def test_reserve_is_all_or_nothing_and_replaces_the_last_one(name: str) -> None:
    store = make_store(name, IntegerPool(20), block_size=4)
    store.begin("a", [1])
    store.begin("b", [1])
    assert store.reserve("a", 5)
    before = store.slots("a").tolist()
    assert not store.reserve("a", store.capacity + 1)
    assert store.slots("a").tolist() == before
    assert store.reserve("a", 9)
    free = store.num_free_tokens
    assert not store.reserve("b", free + 1)
    assert store.num_free_tokens == free
    assert store.reserve("a", 1)
    assert store.reserve("b", 8)
    assert len(store.slots("b")) == 8
    store.check()
    assert store.reserve("a", 0)
    assert store.reserve("b", store.capacity)
    assert store.num_free_tokens == 0
    assert store.usage == 1.0
    store.check()


def test_one_sequence_alone_can_use_the_whole_capacity(name: str) -> None:
    writer = Writer(make_store(name, IntegerPool(36), block_size=4))
    for other in ("x", "y", "z"):  # leave holes first
        writer.begin(other, [1])
        writer.run(other, [1, 2, 3])
    writer.free("x")
    writer.free("z")
    writer.run("y", [4, 5, 6, 7])
    writer.check()
    assert writer.run("y", range(writer.store.capacity - 7))
    assert not writer.run("y", [1])
    writer.check()


def test_reserved_rows_of_one_sequence_survive_the_commit_of_another(name: str) -> None:
    """The engine reserves for all, runs once, then commits one after the other."""
    writer = Writer(make_store(name, IntegerPool(64), block_size=4))
    for key in "abc":
        writer.begin(key, [ord(key)])
        assert writer.store.reserve(key, 6)
    for key in "abc":
        writer.write(key, [1, 2, 3, 4, 5, 6], [-1, 0, 0, 1, 2, 4])
    for key, path in zip("abc", ([0, 2, 4, 5], [0], [0, 1, 3]), strict=True):
        writer.commit(key, [1, 2, 3, 4, 5, 6], path)
    writer.check()


def test_free_of_an_unknown_id_is_fine_and_begin_twice_is_a_bug(name: str) -> None:
    store = make_store(name, IntegerPool(20), block_size=4)
    store.free("nobody")
    store.begin("a", [1, 2])
    with pytest.raises(AssertionError, match="a has begun already"):
        store.begin("a", [1, 2])
    store.free("a")
    store.begin("a", [1, 2])
    store.check()


@pytest.mark.parametrize("path", [[1, 0], [0, 0], [0, 5], [-1]])
def test_commit_refuses_a_path_that_is_not_ascending_reserved_rows(
    name: str, path: list[int]
) -> None:
    store = make_store(name, IntegerPool(20), block_size=4)
    store.begin("a", [1])
    store.reserve("a", 3)
    with pytest.raises(AssertionError):
        store.commit("a", path, [1] * len(path))


def test_commit_refuses_token_ids_that_are_not_the_content_held(name: str) -> None:
    store = make_store(name, IntegerPool(20), block_size=4)
    store.begin("a", [1])
    store.reserve("a", 3)
    with pytest.raises(AssertionError):
        store.commit("a", [0, 1], [1, 2, 3])


@pytest.mark.parametrize("caching", [True, False])
def test_shares_prefixes_says_whether_begin_may_find_something(name: str, caching: bool) -> None:
    store = make_store(name, IntegerPool(40), block_size=4, enable_prefix_caching=caching)
    ids = list(range(12))
    store.begin("a", ids)
    store.reserve("a", 12)
    store.commit("a", range(12), ids)
    assert (store.begin("b", ids) > 0) == store.shares_prefixes
    assert not store.shares_prefixes or caching


def test_check_sees_a_written_null_slot(name: str) -> None:
    pool = TensorPool(20)
    store = make_store(name, pool, block_size=4)
    store.check()
    pool.values[1][0, 1, 2] = 1.0
    with pytest.raises(AssertionError, match=r"slot 0 \(null\): values of layer 1"):
        store.check()


def damaged(store: Any, how: str) -> None:
    first = store._holdings["a"].pages[0]
    if how == "counted twice":
        store._references[first] += 1
    elif how == "freed while held":
        store._free.append(first)
    elif how == "shared without a count":
        store._holdings["b"].pages[0] = first
    elif how == "lost":
        store._free.pop()


@pytest.mark.parametrize(
    "how", ["counted twice", "freed while held", "shared without a count", "lost"]
)
def test_check_of_paged_names_the_slot_of_a_planted_fault(how: str) -> None:
    writer = Writer(make_store("paged", IntegerPool(40), block_size=4))
    for key in "ab":
        writer.begin(key, [ord(key)])
        writer.run(key, [ord(key), 2])
    writer.check()
    damaged(writer.store, how)
    with pytest.raises(AssertionError, match=r"slot \d+"):
        writer.store.check()


def test_check_of_dense_names_the_slot_of_a_planted_overlap() -> None:
    store = make_store("dense", IntegerPool(40))
    for key in "ab":
        store.begin(key, [1])
        store.reserve(key, 3)
    store._runs["b"].start = 3
    with pytest.raises(AssertionError, match="slot 3 belongs to a and b"):
        store.check()


def test_slots_start_with_the_committed_positions(name: str) -> None:
    store = make_store(name, IntegerPool(40), block_size=4)
    store.begin("a", [1])
    store.reserve("a", 6)
    store.commit("a", range(6), [1] * 6)
    committed = store.slots("a")
    store.reserve("a", 5)
    assert np.array_equal(store.slots("a")[:6], committed)
    assert len(store.slots("a")) == 11
