"""No drafts: plain decoding. The baseline every other drafter must beat, and its floor.

Costs nothing and keeps nothing. It loses wherever a guess would have been right.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from foreword.draft._context import DraftContext
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 1.0


@dataclass(frozen=True, slots=True)
class Config:
    """No options."""


class NoDrafter:
    """Proposes an empty trie for every sequence."""

    name = "none"

    def begin(self, sequence: Sequence) -> None:
        pass

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        return [Trie()] * len(sequences)

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        pass

    def end(self, sequence: Sequence) -> None:
        pass


def make(config: Config, context: DraftContext) -> Drafter:
    return NoDrafter()
