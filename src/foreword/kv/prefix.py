"""Which page holds which prefix: a SHA-256 chain over (identity, salt, ids) and an LRU order.

A key names the content of a whole prefix, not of one block: `extend(parent, ids)` hashes the key of
everything before it. `identity` (model, numerics, KV format) and the request's scope (adapter and
salt) open the chain, so what may not be shared cannot meet. Pages are plain integers here; whether
one is in use, and what it costs, is the store's business (`paged.py`).

Two pages with the same content keep one entry: the first stays, the second is simply not listed.

A page may also be listed under less than a block, as a tail: what a sequence left behind on its
last page, for those that go on from exactly there. Tails save the least and are evicted first.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import chain


class PrefixIndex:
    """key -> page, and the listed pages nobody uses in the order they will be evicted."""

    def __init__(self, identity: str) -> None:
        self._identity = identity.encode()
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # full pages, oldest first
        self._idle_tails: OrderedDict[int, None] = OrderedDict()
        self._tails: dict[int, tuple[bytes, int]] = {}  # page -> what it extends, tokens
        self._after: dict[bytes, Counter[int]] = {}  # what it extends -> lengths of the tails

    def root(self, salt: str) -> bytes:
        """The key of the empty prefix. Lengths are hashed too: ("ab", "c") is not ("a", "bc")."""
        text = salt.encode()
        sizes = struct.pack("<2q", len(self._identity), len(text))
        return hashlib.sha256(sizes + self._identity + text).digest()

    @staticmethod
    def extend(parent: bytes, ids: SequenceOf[int]) -> bytes:
        """The key of `parent`'s prefix followed by one full block `ids`."""
        return hashlib.sha256(parent + struct.pack(f"<{len(ids)}q", *ids)).digest()

    def find(self, key: bytes) -> int | None:
        """The page listed under `key`."""
        return self._pages.get(key)

    def insert(self, key: bytes, page: int) -> None:
        """List `page` under `key`, unless the key or the page is listed already. A parked page that
        was there first counts as used: its content has just been asked for."""
        first = self._pages.get(key)
        if first is None and page not in self._keys:
            self._pages[key] = page
            self._keys[page] = key
        elif first is not None and first in self._idle:
            self._idle.move_to_end(first)

    def insert_tail(self, parent: bytes, ids: SequenceOf[int], page: int) -> None:
        """List `page`, whose first positions hold `ids`, after `parent`, unless the key or the page
        is listed already."""
        key = self.extend(parent, ids)
        if key not in self._pages and page not in self._keys:
            self.insert(key, page)
            self._tails[page] = (parent, len(ids))
            self._after.setdefault(parent, Counter())[len(ids)] += 1

    def find_tail(self, parent: bytes, ids: SequenceOf[int]) -> tuple[int, int] | None:
        """The page of the longest tail after `parent` that `ids` begin with, and its length."""
        for length in sorted(self._after.get(parent, ()), reverse=True):
            if length <= len(ids):
                page = self._pages.get(self.extend(parent, ids[:length]))
                if page is not None:
                    return page, length
        return None

    def is_tail(self, page: int) -> bool:
        """Whether `page` is listed under less than a block: its users copy it before they write."""
        return page in self._tails

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def forget(self, page: int) -> None:
        """`page` is about to change: unlist it (fine when it is not listed)."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._pages[key]
        self._idle.pop(page, None)
        self._idle_tails.pop(page, None)
        parent, length = self._tails.pop(page, (b"", 0))
        if length:
            lengths = self._after[parent]
            lengths[length] -= 1
            if not lengths[length]:
                del lengths[length]
            if not lengths:
                del self._after[parent]

    def park(self, page: int) -> None:
        """A listed page lost its last user: it becomes the youngest candidate for eviction."""
        assert page in self._keys, f"page {page} is not listed"
        (self._idle_tails if page in self._tails else self._idle)[page] = None

    def unpark(self, page: int) -> None:
        """A parked page found a user."""
        del (self._idle_tails if page in self._tails else self._idle)[page]

    def evict(self) -> int:
        """Unlist and return the page that has been parked longest, of the tails if there are
        any."""
        page = next(iter(self._idle_tails or self._idle))
        self.forget(page)
        return page

    @property
    def num_idle(self) -> int:
        return len(self._idle) + len(self._idle_tails)

    @property
    def idle(self) -> Iterator[int]:
        return chain(self._idle_tails, self._idle)

    def check(self) -> None:
        """Assert that both directions agree and that only listed pages are parked."""
        assert len(self._pages) == len(self._keys)
        for key, page in self._pages.items():
            assert self._keys.get(page) == key, f"page {page} is listed under another key"
        for page in self.idle:
            assert page in self._keys, f"page {page} is parked but not listed"
        assert sum(map(Counter.total, self._after.values())) == len(self._tails)
        assert self._tails.keys() <= self._keys.keys(), "a tail is not listed"
        assert not self._idle.keys() & self._tails.keys(), "a tail is parked among the full pages"
