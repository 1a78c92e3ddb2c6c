"""Drafts from a script, for tests: makes acceptance exactly what a test wants it to be.

A script is a function (sequence, budget) -> nodes `(parent, token, score)`, parents first. The
helpers below write scripts from a *reference*: a function that gives the output ids a request will
have (a plain run recorded them). Right up to a chosen index, always wrong, wrong by chance, with a
planted token: all acceptance patterns the loop must survive. Costs nothing, knows nothing of
models. No use outside tests: `make` without a script is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import islice

from foreword.draft._context import DraftContext
from foreword.errors import ConfigError
from foreword.protocols import Drafter
from foreword.types import Outcome, Sequence, Trie

needs: frozenset[str] = frozenset()
acceptance_floor = 5.0  # with a script that knows the answer

Node = tuple[int, int, float]  # parent (-1 = root), token, score
Script = Callable[[Sequence, int], Iterable[Node]]
Reference = Callable[[Sequence], SequenceOf[int]]
Right = Callable[[Sequence, int], bool]  # is the draft right at this depth (0-based) of this step?


@dataclass(frozen=True, slots=True)
class Config:
    """script: what to propose. A Python function, so it cannot come from a command line."""

    script: Script | None = None


class ScriptedDrafter:
    """Reads out its script, cut to the budget, to `max_depth` and to ids the target can emit.

    It does not look at how many tokens a sequence may still emit: drafts past the end are a case
    the loop must survive.
    """

    name = "scripted"

    def __init__(self, script: Script, context: DraftContext) -> None:
        self._script = script
        self._context = context

    def begin(self, sequence: Sequence) -> None:
        pass

    def propose(self, sequences: SequenceOf[Sequence], budget: SequenceOf[int]) -> list[Trie]:
        rows = zip(sequences, budget, strict=True)
        return [self._read(sequence, limit) for sequence, limit in rows]

    def observe(self, outcomes: SequenceOf[Outcome]) -> None:
        pass

    def end(self, sequence: Sequence) -> None:
        pass

    def _read(self, sequence: Sequence, budget: int) -> Trie:
        trie = Trie()
        if budget < 1:
            return trie
        moved, depths = {-1: -1}, {-1: 0}  # node of the script -> node of the trie, depth
        for node, (parent, token, score) in enumerate(self._script(sequence, budget)):
            if len(trie) == budget:
                break
            if parent not in moved or depths[parent] == self._context.max_depth:
                continue  # too deep, or below a node that was left out
            if 0 <= token < self._context.vocab_size:
                moved[node] = trie.add(moved[parent], token, score, self.name)
                depths[node] = depths[parent] + 1
        return trie


def make(config: Config, context: DraftContext) -> Drafter:
    if config.script is None:
        raise ConfigError(
            "drafter 'scripted' is for tests and needs the option script (a Python function); "
            "choose another drafter"
        )
    return ScriptedDrafter(config.script, context)


def chain(reference: Reference, length: int, right: Right, vocab_size: int) -> Script:
    """A path of `length` tokens: the reference's where `right`, elsewhere the id after it."""

    def script(sequence: Sequence, budget: int) -> Iterable[Node]:
        start = sequence.num_output
        coming = islice(reference(sequence), start, start + length)
        for index, token in enumerate(coming):
            wrong = (token + 1) % vocab_size
            yield index - 1, token if right(sequence, index) else wrong, 0.9

    return script


def right_until(wrong: int) -> Right:
    """Right at depths 0 .. wrong-1, wrong from there on; 0 = always wrong."""
    return lambda sequence, index: index < wrong


def right_by_chance(rate: float, salt: str = "") -> Right:
    """Right at about `rate` of the output positions: a hash of request and position decides, so a
    position is right or wrong however the sequence gets there."""

    def right(sequence: Sequence, index: int) -> bool:
        text = f"{salt}/{sequence.id}/{sequence.num_output + index}"
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        return number < rate * 2**64

    return right


def planting(script: Script, index: int, token: int) -> Script:
    """The path of `script` with `token` at depth `index` (an end token, say)."""

    def planted(sequence: Sequence, budget: int) -> Iterable[Node]:
        for depth, (parent, drafted, score) in enumerate(script(sequence, budget)):
            yield parent, token if depth == index else drafted, score

    return planted
