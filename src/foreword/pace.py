"""How many draft nodes a step may verify, and at what price: fixed, or from measured times.

`FixedPace` gives the same number in every step and no prices. `MeasuredPace` keeps three things:

    the cost curve     of passes (cost.py), fed with every pass that was not reading a prompt
    the overhead       of a step outside its pass: planning, drafting, accepting
    the gain           tokens per second lately, over those of plain steps of the same sequences

From them a step's `Budget`: seconds for each number of nodes, and the rate at which time could be
spent elsewhere (the gain times the plain rate): a node is worth its row where it brings tokens
faster than that. What a token is worth doubles with each step of priority, at most four times, and
rises as a request falls behind its deadline.

Drafters are asked for about twice the nodes that were used lately, so that a large limit costs no
time while little of it is used, and grows within a few steps when it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from foreword.cost import CostCurve
from foreword.fit import TILE_ROWS
from foreword.types import Budget, Outcome, Sequence

LEAST, MOST = 8, 112  # draft nodes a step may be offered over the batch
MEMORY = 0.95  # share of the past that a step leaves in the gain
FADING = 0.9  # and in the largest number of nodes used
WEIGHTS = (0.25, 4.0)  # what priority and deadline may make of a token, least and most
OVERHEAD_STEP = 0.02
CAUTION = 1.15  # what nodes are said to cost, of what they cost: a guess that just pays may as well
# not, and chances that were chosen for being high are on average less than they say


def fill_last_tile(sequences: int) -> int:
    """Draft nodes that fill up the last matrix tile of a pass, at least half of one."""
    rows = -(-(sequences + TILE_ROWS // 2) // TILE_ROWS) * TILE_ROWS
    return rows - sequences


class FixedPace:
    """nodes: running sequences -> draft nodes of a step."""

    def __init__(self, nodes: Callable[[int], int]) -> None:
        self._nodes = nodes

    def nodes(self, sequences: int) -> tuple[int, int]:
        total = self._nodes(sequences)
        return total, total

    def budget(
        self, sequences: SequenceOf[Sequence], rows: int, total: int, per_sequence: SequenceOf[int]
    ) -> Budget:
        return Budget(total, tuple(per_sequence))

    def passed(self, segments: SequenceOf[tuple[int, int]], seconds: float) -> None:
        pass

    def stepped(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        pass


class MeasuredPace:
    """most: draft nodes of a step, whatever they would bring."""

    def __init__(self, curve: CostCurve, most: int = MOST) -> None:
        self.curve = curve
        self.overhead = 0.0  # seconds
        self._most = most
        self._used = float(LEAST)  # nodes of a step, a fading maximum
        self._used_by_one = float(LEAST // 2)
        self._emitted, self._plain = 0.0, 0.0  # tokens, and those of plain steps in the same time

    @property
    def gain(self) -> float:
        """Speed over that of plain steps, at least 1."""
        return max(1.0, self._emitted / self._plain) if self._plain else 1.0

    def nodes(self, sequences: int) -> tuple[int, int]:
        total = min(self._most, max(LEAST, sequences) + int(2.0 * self._used))
        return total, min(total, LEAST // 2 + int(2.0 * self._used_by_one))

    def budget(
        self, sequences: SequenceOf[Sequence], rows: int, total: int, per_sequence: SequenceOf[int]
    ) -> Budget:
        curve = self.curve
        table, level = curve.table(rows + total), curve.level
        keys = sum(len(sequence.token_ids) for sequence in sequences)
        other = self.overhead + (curve.context_cost + curve.row_context_cost) * keys
        weights = [self._weight(sequence) for sequence in sequences]
        plain = level * table[len(sequences)] + other
        after = curve.aftermath(rows, total)
        costs = list(zip(table[rows : rows + total + 1], after, strict=True))
        sure = level * costs[0][0] + other
        return Budget(
            total,
            tuple(per_sequence),
            [sure + CAUTION * (level * (cost - costs[0][0]) + later) for cost, later in costs],
            [CAUTION * curve.row_context_cost * len(one.token_ids) for one in sequences],
            weights,
            self.gain * sum(weights) / plain,
        )

    def passed(self, segments: SequenceOf[tuple[int, int]], seconds: float) -> None:
        rows = sum(count for count, _ in segments)
        keys = sum(before for _, before in segments)
        self.curve.observe(rows, keys, sum(count * before for count, before in segments), seconds)

    def stepped(self, outcomes: SequenceOf[Outcome], seconds: float) -> None:
        if self.overhead == 0.0:
            self.overhead = seconds
        step = OVERHEAD_STEP * self.overhead
        self.overhead += step if seconds > self.overhead else -step
        if not outcomes:
            return
        sequences, nodes = len(outcomes), [outcome.tree.num_drafted for outcome in outcomes]
        self._used = max(FADING * self._used, sum(nodes))
        self._used_by_one = max(FADING * self._used_by_one, *nodes)
        plain = self.curve.seconds(sequences) + self.overhead
        spent = self.curve.seconds(sequences + sum(nodes)) + self.overhead
        spent += self.curve.aftermath(sequences, sum(nodes))[-1]
        emitted = sum(len(outcome.verdict.tokens) for outcome in outcomes)
        self._emitted = MEMORY * self._emitted + emitted
        self._plain = MEMORY * self._plain + sequences * spent / plain

    def _weight(self, sequence: Sequence) -> float:
        request = sequence.request
        weight = 2.0 ** -max(-8, min(8, request.priority))
        if request.deadline is not None:
            left = max(1e-3, request.deadline - time.monotonic())
            needed = sequence.remaining / left  # tokens a second
            weight *= max(1.0, needed * (self.curve.seconds(1) + self.overhead) / self.gain)
        return min(max(weight, WEIGHTS[0]), WEIGHTS[1])
