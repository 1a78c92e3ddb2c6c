"""The loops of drafting in compiled code, where the extension is built.

Same nodes, same scores as the Python files they are named after, which stay the specification and
run where nothing is built. Whether the extension is there says
foreword/compiled.py.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

from foreword.draft._calibration import Reliability
from foreword.types import DraftTree, Trie


def trie_of(columns: tuple[list[int], list[int], list[float], list[int]], source: str) -> Trie:
    """(tokens, parents, scores, evidence), all from one source."""
    tokens, parents, scores, evidence = columns
    return Trie(tokens, parents, scores, [source] * len(tokens), evidence)


class CompiledCalibration:
    """_calibration.Calibration for CompiledMerged."""

    def __init__(self, native: Any, learning: bool) -> None:
        self.native = native.Calibration(learning)

    @property
    def reliability(self) -> dict[str, Reliability]:
        """By source, as it is now."""
        plots: dict[str, tuple[list[int], list[float], list[int]]] = self.native.reliability()
        return {name: Reliability(*columns) for name, columns in plots.items()}


class CompiledMerged:
    """_merge.Merged; `trust` is a native.Trust."""

    def __init__(self, native: Any) -> None:
        self._native = native.Merged()

    def add(
        self, trie: Trie, owner: str, kind: int, calibration: CompiledCalibration, trust: Any
    ) -> None:
        self._native.add(trie, owner, kind, calibration.native, trust)

    def combine(self, kind: int, calibration: CompiledCalibration, trust: Any) -> None:
        self._native.combine(kind, calibration.native, trust)

    def best(self, budget: int) -> Trie:
        tokens, parents, scores, sources = self._native.best(budget)
        return Trie(tokens, parents, scores, sources, [0] * len(tokens))

    def learn(
        self,
        emitted: SequenceOf[int],
        tree: DraftTree,
        calibration: CompiledCalibration,
        trust: Any,
    ) -> None:
        self._native.learn(emitted, tree.tokens, tree.parents, calibration.native, trust)

    def credit(self, emitted: SequenceOf[int]) -> dict[str, float]:
        found: dict[str, float] = self._native.credit(emitted)
        return found
