"""Which page holds which prefix: a SHA-256 chain over (identity, salt, ids) and an LRU order.

A key names the content of a whole prefix, not of one block: `extend(parent, ids)` hashes the key of
everything before it. `identity` (model, numerics, KV format) and the request's scope (adapter and
salt) open the chain, so what may not be shared cannot meet. Pages are plain integers here; whether
one is in use, and what it costs, is the store's business (`paged.py`).

Two pages with the same content keep one entry: the first stays, the second is simply not listed.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf


class PrefixIndex:
    """key -> page, and the listed pages nobody uses in the order they will be evicted."""

    def __init__(self, identity: str) -> None:
        self._identity = identity.encode()
        self._pages: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # oldest first

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

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def forget(self, page: int) -> None:
        """`page` is about to change: unlist it (fine when it is not listed)."""
        key = self._keys.pop(page, None)
        if key is not None:
            del self._pages[key]
        self._idle.pop(page, None)

    def park(self, page: int) -> None:
        """A listed page lost its last user: it becomes the youngest candidate for eviction."""
        assert page in self._keys, f"page {page} is not listed"
        self._idle[page] = None

    def unpark(self, page: int) -> None:
        """A parked page found a user."""
        del self._idle[page]

    def evict(self) -> int:
        """Unlist and return the page that has been parked longest."""
        page = next(iter(self._idle))
        self.forget(page)
        return page

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    @property
    def idle(self) -> Iterator[int]:
        return iter(self._idle)

    def check(self) -> None:
        """Assert that both directions agree and that only listed pages are parked."""
        assert len(self._pages) == len(self._keys)
        for key, page in self._pages.items():
            assert self._keys.get(page) == key, f"page {page} is listed under another key"
        for page in self._idle:
            assert page in self._keys, f"page {page} is parked but not listed"
