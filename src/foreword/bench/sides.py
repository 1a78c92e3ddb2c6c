"""One loaded model, run plain and with drafts by turns; and what every step took and brought.

A side is an engine around the same parts, so that only drafting differs. Nothing may be running
when sides are changed. `Log` stands where the pace and the builder are and writes down, for every
step that reads no prompt, what the engine expected before the pass and what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from foreword.cost import CostCurve
from foreword.draft import none
from foreword.draft._context import DraftContext
from foreword.engine import Engine
from foreword.llm import LLM
from foreword.pace import FixedPace, MeasuredPace
from foreword.protocols import Pace, TreeBuilder
from foreword.types import Budget, DraftTree, Outcome, Sequence, Trie


@dataclass(slots=True)
class Step:
    """One step: rows of its pass, seconds and tokens said before and had after."""

    sequences: int
    rows: int
    keys: int
    row_keys: int
    expected: float  # tokens
    emitted: int = 0
    said: float = 0.0  # seconds of the pass, as the cost curve had them before it
    passed: float = 0.0  # and as they came
    around: float = 0.0  # and of all else


@dataclass(slots=True)
class Log:
    """Wraps a pace and a builder. curve: says what passes should take."""

    pace: Pace
    builder: TreeBuilder
    curve: CostCurve | None = None
    name: str = "log"
    steps: list[Step] = field(default_factory=list)
    drafted: dict[str, int] = field(default_factory=dict)  # nodes verified, by source
    accepted: dict[str, int] = field(default_factory=dict)
    _reach: float = 0.0  # expected accepted nodes of the trees built last

    def nodes(self, sequences: int) -> tuple[int, int]:
        self._reach = 0.0  # of a step that read a prompt and was not counted
        return self.pace.nodes(sequences)

    def budget(
        self, sequences: SequenceOf[Sequence], rows: int, total: int, per_sequence: SequenceOf[int]
    ) -> Budget:
        return self.pace.budget(sequences, rows, total, per_sequence)

    def build(
        self, roots: SequenceOf[int], tries: SequenceOf[Trie], budget: Budget
    ) -> list[DraftTree]:
        trees = self.builder.build(roots, tries, budget)
        self._reach = sum(map(_expected, trees, tries))
        return trees

    def passed(self, segments: SequenceOf[tuple[int, int]], seconds: float) -> None:
        rows, keys = sum(count for count, _ in segments), sum(before for _, before in segments)
        row_keys = sum(count * before for count, before in segments)
        expected = len(segments) + self._reach
        before = self.steps[-1].rows if self.steps else 0
        said = self.curve.seconds(rows, keys, row_keys, before) if self.curve else 0.0
        self.steps.append(Step(len(segments), rows, keys, row_keys, expected, 0, said, seconds))
        self._reach = 0.0
        self.pace.passed(segments, seconds)

    def stepped(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        step = self.steps[-1]
        step.around = seconds
        for outcome in outcomes:
            step.emitted += len(outcome.verdict.tokens)
            for names, counts in (
                (outcome.tree.sources, self.drafted),
                (outcome.tree.guessed(outcome.verdict.tokens), self.accepted),
            ):
                for name in filter(None, names):
                    counts[name] = counts.get(name, 0) + 1
        self.pace.stepped(outcomes, seconds)

    @property
    def tokens(self) -> int:
        return sum(step.emitted for step in self.steps)

    @property
    def seconds(self) -> float:
        return sum(step.passed + step.around for step in self.steps)


def _expected(tree: DraftTree, trie: Trie) -> float:
    """Sum of reach over the drafted nodes."""
    index = {pair: node for node, pair in enumerate(zip(trie.parents, trie.tokens, strict=True))}
    nodes, reach = [-1], [1.0]
    for parent, token in zip(tree.parents[1:], tree.tokens[1:], strict=True):
        nodes.append(index[nodes[parent], token])
        reach.append(reach[parent] * trie.scores[nodes[-1]])
    return sum(reach[1:])


class Sides:
    """The two sides of `llm`, which must have been loaded with the drafting to compare."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._parts = llm.engine.parts

    def forget(self) -> None:
        """Begin again with a drafter that has learned nothing."""
        self._parts = replace(self._parts, drafter=self._llm.built.fresh())

    @contextmanager
    def run(self, drafts: bool) -> Iterator[Log]:
        """The door runs this side within the block. Times of plain passes teach the same curve."""
        parts, before = self._parts, self._llm.engine
        if not drafts:
            pace: Pace = FixedPace(lambda _: 0)
            if isinstance(parts.pace, MeasuredPace):
                pace = PlainPace(parts.pace)
            drafter = none.make(none.Config(), DraftContext(1, 1))
            parts = replace(parts, drafter=drafter, pace=pace)
        measured = self._parts.pace
        curve = measured.curve if isinstance(measured, MeasuredPace) else None
        log = Log(parts.pace, parts.builder, curve)
        self._llm.engine = Engine(replace(parts, pace=log, builder=log))
        try:
            yield log
        finally:
            self._llm.engine = before


class PlainPace(FixedPace):
    """No drafts; passes are still observed."""

    def __init__(self, measured: MeasuredPace) -> None:
        super().__init__(lambda _: 0)
        self._measured = measured

    def passed(self, segments: SequenceOf[tuple[int, int]], seconds: float) -> None:
        self._measured.passed(segments, seconds)
