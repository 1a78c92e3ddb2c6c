"""The default store: pages of `block_size` tokens at absolute positions, prefixes shared by hash.

    positions   0 ......... L | L .......... L+rows
    pages     [ full ][ full ][ part | reserved ][ reserved ]

Page p covers slots [p * block_size, (p+1) * block_size); position i of a sequence lives in its page
i // block_size at offset i % block_size. Page 0 is never handed out: it holds the null slot.
Row i of a pass gets position L+i's slot, so a fully accepted chain is committed without a copy; of
a tree the accepted rows are moved down and the pages past the end are freed.

A page is free, held (reference count = number of sequences using it) or cached (full, committed,
listed in the prefix index, used by nobody: evicted least recently used when room is needed). Only
committed full blocks are listed, and `begin` never attaches a whole sequence: at least one token is
computed again, because its logits are needed. Shared pages are full and so never written, except
after `truncate`: the next `reserve` then copies the shared part or unlists the page. A sequence
that leaves by `keep` lists its part-filled last page too, as a tail: whoever goes on from there
copies it before it writes, so that any number may (beams do).

With a sliding window nothing is freed early: an attached prefix is complete, and costs the memory.
Duplicates are not merged: two sequences that compute one block at once hold a page each (the
scheduler has the second wait for the first where it can).
Knows ids, pages and slots only: the pool may be any object with `num_slots`, `move` and `check`.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from foreword.errors import ConfigError
from foreword.kv.prefix import PrefixIndex


@dataclass(slots=True)
class _Holding:
    """What one sequence has: pages of its positions [0, length + reserved)."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    reserved: int = 0
    keys: list[bytes] = field(default_factory=list)  # keys[b]: prefix up to the end of block b
    root: bytes = b""
    asked: int = 0  # tokens looked up by begin, counted once room was found
    attached: int = 0
    table: np.ndarray | None = None  # slots of all pages; None once the pages have changed


def make(
    pool: Any, *, block_size: int = 16, identity: str = "", enable_prefix_caching: bool = True
) -> PagedStore:
    """A store over `pool`; it can hold (num_slots // block_size - 1) * block_size tokens."""
    return PagedStore(pool, block_size, identity, enable_prefix_caching)


class PagedStore:
    """KVStore with pages. Raises ConfigError when the pool has no page to hand out."""

    def __init__(
        self, pool: Any, block_size: int, identity: str, enable_prefix_caching: bool
    ) -> None:
        self.pool = pool
        self.block_size: int = block_size
        self.num_pages: int = pool.num_slots // block_size - 1
        if self.num_pages < 1:
            raise ConfigError(
                f"a KV pool of {pool.num_slots} slots has no room for a page of {block_size}; "
                f"give it at least {2 * block_size} slots"
            )
        self.capacity: int = self.num_pages * block_size
        self.prefix_queries = 0  # tokens looked up
        self.prefix_hits = 0  # tokens found
        self.shares_prefixes = self._caching = enable_prefix_caching
        self._index = PrefixIndex(identity)
        self._free = list(range(self.num_pages, 0, -1))  # a stack, lowest page on top
        self._references = [0] * (self.num_pages + 1)
        self._holdings: dict[str, _Holding] = {}
        self._offsets = np.arange(block_size, dtype=np.int64)

    # What the scheduler and the metrics read -------------------------------------------------

    @property
    def num_free_tokens(self) -> int:
        return (len(self._free) + self._index.num_idle) * self.block_size

    @property
    def usage(self) -> float:
        """Share of the pages held by sequences, in [0, 1]."""
        return 1.0 - self.num_free_tokens / self.capacity

    def length(self, sequence_id: str) -> int:
        return self._holdings[sequence_id].length

    def slots(self, sequence_id: str) -> np.ndarray:
        """int64 [committed + reserved]."""
        holding = self._holdings[sequence_id]
        if holding.table is None:
            starts = np.asarray(holding.pages, dtype=np.int64) * self.block_size
            holding.table = (starts[:, None] + self._offsets).reshape(-1)  # [pages * block_size]
        return holding.table[: holding.length + holding.reserved]

    # The life of a sequence ------------------------------------------------------------------

    def begin(self, sequence_id: str, token_ids: SequenceOf[int], salt: str = "") -> int:
        assert sequence_id not in self._holdings, f"{sequence_id} has begun already"
        holding = _Holding()
        self._holdings[sequence_id] = holding
        if not self._caching:
            return 0
        holding.root = key = self._index.root(salt)
        for block in range((len(token_ids) - 1) // self.block_size):  # never the last token
            key = self._index.extend(key, self._block(token_ids, block))
            page = self._index.find(key)
            if page is None:
                break
            if self._references[page] == 0:
                self._index.unpark(page)
            self._references[page] += 1
            holding.pages.append(page)
            holding.keys.append(key)
        holding.length = len(holding.pages) * self.block_size
        self._attach_tail(holding, token_ids)
        holding.attached = holding.length
        holding.asked = len(token_ids)
        return holding.length

    def reserve(self, sequence_id: str, rows: int) -> bool:
        """False leaves everything, the last reservation included, as it was."""
        holding = self._holdings[sequence_id]
        target = -(-(holding.length + rows) // self.block_size)  # pages for [0, length + rows)
        tail = holding.length % self.block_size if rows else 0
        room = len(self._free) + self._index.num_idle - (target - len(holding.pages))
        shared = tail > 0 and self._is_shared(
            holding.pages[holding.length // self.block_size], room
        )
        if room < shared:
            return False
        self._release(holding, target)
        while len(holding.pages) < target:
            holding.pages.append(self._allocate())
            holding.table = None
        if tail:
            self._own_tail(holding, tail, shared)
        holding.reserved = rows
        self.prefix_queries += holding.asked
        self.prefix_hits += holding.attached
        holding.asked = holding.attached = 0
        return True

    def commit(self, sequence_id: str, path: SequenceOf[int], token_ids: SequenceOf[int]) -> None:
        holding = self._holdings[sequence_id]
        assert all(a < b for a, b in pairwise(path)), f"the path must ascend: {path}"
        assert not path or 0 <= path[0] <= path[-1] < holding.reserved, (
            f"{path} leaves {holding.reserved} rows"
        )
        in_place = next((i for i, row in enumerate(path) if row != i), len(path))
        if in_place < len(path):  # a path that leaves the first rows never comes back to them
            new = self.slots(sequence_id)[holding.length :]  # [reserved]
            self.pool.move(new[list(path[in_place:])], new[in_place : len(path)].copy())
        holding.length += len(path)
        holding.reserved = 0
        assert len(token_ids) == holding.length, (len(token_ids), holding.length)
        self._release(holding, -(-holding.length // self.block_size))
        self._list_full_blocks(holding, token_ids)

    def truncate(self, sequence_id: str, length: int) -> None:
        """Drops the reservation too."""
        holding = self._holdings[sequence_id]
        assert 0 <= length <= holding.length, (length, holding.length)
        holding.length = length
        holding.reserved = 0
        self._release(holding, -(-length // self.block_size))
        del holding.keys[length // self.block_size :]

    def free(self, sequence_id: str) -> None:
        holding = self._holdings.pop(sequence_id, None)
        if holding is not None:
            self._release(holding, 0)

    def keep(self, sequence_id: str, token_ids: SequenceOf[int]) -> None:
        holding = self._holdings.get(sequence_id)
        if holding is not None and self._caching:
            self.truncate(sequence_id, holding.length)  # what was reserved goes
            blocks, tail = divmod(holding.length, self.block_size)
            if tail and blocks == len(holding.keys):
                ids = token_ids[blocks * self.block_size : holding.length]
                parent = holding.keys[-1] if holding.keys else holding.root
                self._index.insert_tail(parent, ids, holding.pages[blocks])
        self.free(sequence_id)

    # Pages -----------------------------------------------------------------------------------

    def _block(self, token_ids: SequenceOf[int], block: int) -> SequenceOf[int]:
        return token_ids[block * self.block_size : (block + 1) * self.block_size]

    def _attach_tail(self, holding: _Holding, token_ids: SequenceOf[int]) -> None:
        """After the full pages: what somebody left of the next one. Never the last token."""
        parent = holding.keys[-1] if holding.keys else holding.root
        rest = token_ids[holding.length : min(holding.length + self.block_size, len(token_ids)) - 1]
        found = self._index.find_tail(parent, rest)
        if found is not None:
            page, length = found
            if self._references[page] == 0:
                self._index.unpark(page)
            self._references[page] += 1
            holding.pages.append(page)
            holding.length += length

    def _is_shared(self, page: int, room: int) -> bool:
        """Whether the page must be copied before it is written: somebody reads it, or may come to
        read it. The latter gives way where there is no page for the copy."""
        return self._references[page] > 1 or (room > 0 and self._index.is_tail(page))

    def _allocate(self) -> int:
        page = self._free.pop() if self._free else self._index.evict()
        self._references[page] = 1
        return page

    def _release(self, holding: _Holding, keep: int) -> None:
        """Give up pages [keep, end), the last first: a cached prefix is evicted from its end."""
        while len(holding.pages) > keep:
            page = holding.pages.pop()
            holding.table = None
            self._references[page] -= 1
            if self._references[page] == 0:
                if page in self._index:
                    self._index.park(page)
                else:
                    self._free.append(page)

    def _own_tail(self, holding: _Holding, tail: int, shared: bool) -> None:
        """The page of the last `tail` positions is about to be written: nobody else may read it."""
        block = holding.length // self.block_size
        page = holding.pages[block]
        if not shared:
            self._index.forget(page)
            return
        holding.pages[block] = copy = self._allocate()
        holding.table = None
        offsets = self._offsets[:tail]
        self.pool.move(page * self.block_size + offsets, copy * self.block_size + offsets)
        self._references[page] -= 1
        if self._references[page] == 0:
            self._index.park(page)

    def _list_full_blocks(self, holding: _Holding, token_ids: SequenceOf[int]) -> None:
        if not self._caching:
            return
        key = holding.keys[-1] if holding.keys else holding.root
        for block in range(len(holding.keys), holding.length // self.block_size):
            key = self._index.extend(key, self._block(token_ids, block))
            holding.keys.append(key)
            self._index.insert(key, holding.pages[block])

    # Proof -----------------------------------------------------------------------------------

    def check(self) -> None:
        users = [0] * (self.num_pages + 1)
        for name, holding in self._holdings.items():
            pages, positions = holding.pages, holding.length + holding.reserved
            assert len(set(pages)) == len(pages), f"{name} has a page twice: {pages}"
            assert len(pages) == -(-positions // self.block_size), f"{name}: {positions} in {pages}"
            for page in pages:
                users[page] += 1
        assert users[0] == self._references[0] == 0, "slot 0 (null) was handed out"
        free, cached = set(self._free), set(self._index.idle)
        assert len(free) == len(self._free), "a page is twice in the free list"
        for page in range(1, self.num_pages + 1):
            where = f"slot {page * self.block_size} (page {page})"
            assert users[page] == self._references[page], (
                f"{where}: {users[page]} users, {self._references[page]} counted"
            )
            states = (users[page] > 0) + (page in free) + (page in cached)
            assert states == 1, f"{where} is in {states} of free, held, cached"
            assert page not in free or page not in self._index, f"{where} is free but listed"
        held = sum(count > 0 for count in users)
        assert len(free) + held + len(cached) == self.num_pages, "slot 0: a free page is unknown"
        self._index.check()
        self.pool.check()
