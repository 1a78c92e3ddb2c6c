"""A beam, an output that is complete, and the order among outputs. Integers and floats only."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

Candidate = tuple[int, float]  # a token that may come next, what it adds to the score (<= 0)


@dataclass(frozen=True, slots=True)
class Beam:
    """Tokens after the prompt. score: float64, the sum of `added` from left to right."""

    tokens: tuple[int, ...] = ()
    added: tuple[float, ...] = ()
    score: float = 0.0

    def then(self, token: int, added: float) -> Beam:
        return Beam((*self.tokens, token), (*self.added, added), self.score + added)


@dataclass(frozen=True, slots=True)
class Finished:
    """A complete output. rank: its place among all candidates of its step, from 0."""

    beam: Beam
    normalised: float
    rank: int

    def order(self) -> tuple[float, int, int]:
        """Who comes first: the better one, of equals the one that was complete first."""
        return -self.normalised, len(self.beam.tokens), self.rank


@dataclass(frozen=True, slots=True)
class Rules:
    """What a search keeps to. ends: ids that complete an output. returned: how many outputs are
    wanted of the `width` best; None = all."""

    width: int
    max_tokens: int
    ends: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    returned: int | None = None

    def normalised(self, score: float, length: int) -> float:
        """float64: one power, one true division."""
        power: float = float(length) ** self.length_penalty
        return score / power

    def is_end(self, beam: Beam) -> bool:
        return beam.tokens[-1] in self.ends or len(beam.tokens) == self.max_tokens

    def finish(self, beam: Beam, rank: int) -> Finished:
        return Finished(beam, self.normalised(beam.score, len(beam.tokens)), rank)

    def best(self, finished: SequenceOf[Finished]) -> list[Finished]:
        return sorted(finished, key=Finished.order)[: self.width]


class Search(Protocol):
    """Says which beams to expand until it knows the best outputs."""

    num_expansions: int

    def wanted(self) -> list[Beam]:
        """Beams whose next tokens it must know to go on; none: it is done."""

    def give(self, found: SequenceOf[SequenceOf[Candidate]]) -> None:
        """Of each wanted beam the first width + len(ends) candidates, best first, ties by id."""

    def result(self) -> list[Finished]:
        """The best complete outputs, best first; at most as many as are wanted."""
