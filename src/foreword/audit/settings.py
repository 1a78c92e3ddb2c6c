"""What an audit varies: the axes, and one choice of each (a `Setting`). None may move a bit.

Knows the names of the engine's options, builds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from foreword.audit.grid import Axes, Value


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the covering array.

    drafter: none | ngram | model (another checkpoint, or the target drafting for itself) | anti
    (always wrong) | noisy (branches, some right). nodes: draft nodes per pass over the whole batch.
    block: tokens per page. batch: requests running at once. rows: rows per pass, chunks included.
    prefix: cold | warm (the same prompts ran before) | shared (cut ones did). preemption: none |
    memory (a KV cache too small for all) | priority (late requests push out early ones). host:
    clean | hostile (see host.py).
    """

    drafter: str = "none"
    tree: str = "chain"
    nodes: int = 0
    store: str = "paged"
    block: int = 16
    batch: int = 1
    arrival: str = "together"  # together | staggered | reversed
    rows: int = 256
    prefix: str = "cold"
    preemption: str = "none"
    threads: int = 1
    host: str = "clean"

    @staticmethod
    def of(row: Mapping[str, Value]) -> Setting:
        return Setting(**row)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


THOROUGH: Axes = {
    "drafter": ("none", "ngram", "model", "anti", "noisy"),
    "tree": ("chain", "best_first"),
    "nodes": (0, 1, 7, 15, 63),
    "store": ("paged", "dense"),
    "block": (4, 16),
    "batch": tuple(range(1, 17)),
    "arrival": ("together", "staggered", "reversed"),
    "rows": (5, 16, 64, 256),
    "prefix": ("cold", "warm", "shared"),
    "preemption": ("none", "memory", "priority"),
    "threads": (1, 2, 3),
    "host": ("clean", "hostile"),
}

QUICK: Axes = {
    **THOROUGH,
    "drafter": ("none", "ngram", "model", "noisy"),
    "nodes": (1, 7, 15),
    "batch": (1, 2, 5),
    "rows": (16, 64),
    "threads": (1, 2),
}
