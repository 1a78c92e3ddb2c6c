"""Several sources in a fixed order: nearest in time first, the next where there is too little.

Idea: Hierarchy Drafting (arXiv 2502.05609). Text of this sequence is the best place to look, text
of other requests the next, a general table the last; each is asked only if those before it gave
fewer than `num_guesses` nodes. There the places are fixed stores of four-token guesses; here they
are any drafters of this folder, in the order of `sources`, and what they give becomes one trie. A
later source fills what is left of the budget; of a node that two guess, the higher score stays.

Nodes keep the names of their sources. Cost: that of the sources asked. Loses against a mix by
calibrated probability (`auto`) when the first source gives many guesses of little worth.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from foreword.config import positive
from foreword.draft._context import DraftContext, graft
from foreword.errors import ConfigError
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 4.0


@dataclass(frozen=True, slots=True)
class Config:
    """sources: drafters in the order they are asked. num_guesses: nodes of one sequence at which no
    further source is asked."""

    sources: tuple[str, ...] = ("ngram", "lookahead")
    num_guesses: int = 16

    def __post_init__(self) -> None:
        positive(self, "num_guesses")
        object.__setattr__(self, "sources", _names(self.sources))


def _names(value: object) -> tuple[str, ...]:
    names = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"sources must be a list of drafters, got {value!r}")
    if len(set(names)) < len(names):
        raise ConfigError(f"sources names a drafter twice: {', '.join(names)}; name each once")
    return names


def sources(config: Config) -> tuple[str, ...]:
    return config.sources


class HierarchyDrafter:
    """Passes everything on; keeps nothing itself."""

    name = "hierarchy"

    def __init__(self, config: Config, context: DraftContext) -> None:
        self._config = config
        self._context = context
        self._sources = list(context.sources.values())

    def begin(self, sequence: Sequence) -> None:
        for source in self._sources:
            source.begin(sequence)

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        tries = [Trie() for _ in sequences]
        for source in self._sources:
            asked = [
                row
                for row, trie in enumerate(tries)
                if len(trie) < min(self._config.num_guesses, budget[row])
            ]
            if not asked:
                break
            rows = [sequences[row] for row in asked]
            with self._context.clock.measure(source.name):
                given = source.propose(rows, [budget[row] for row in asked])
            for row, more in zip(asked, given, strict=True):
                graft(tries[row], more, budget[row])
        return tries

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        for source in self._sources:
            with self._context.clock.measure(source.name, calls=0):
                source.observe(outcomes)

    def end(self, sequence: Sequence) -> None:
        for source in self._sources:
            source.end(sequence)


def make(config: Config, context: DraftContext) -> Drafter:
    missing = [name for name in config.sources if name not in context.sources]
    if missing:
        raise ConfigError(
            f"drafter 'hierarchy' was not given {', '.join(missing)}; a source that needs a draft "
            "model needs --draft-model"
        )
    return HierarchyDrafter(config, context)
