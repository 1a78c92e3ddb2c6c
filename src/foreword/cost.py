"""What a target pass costs on this machine: seconds by rows, measured and kept current.

    seconds(pass) = level * (shape[rows] + context_cost * keys read + row_context_cost * keys seen)

A pass with fewer rows than the one before may take longer for it: units of wide vectors and of
matrices slow a core down for some milliseconds (a row of SmolLM2 3.4 ms, after 16 rows 5.1). That
goes into `aftermath` of the wider pass, never into the price of the narrow one: speculation is
judged against plain steps as they are without it.

`shape` comes from a few passes at start-up (`measure`) and is refined by the engine's own passes.
A pass is sometimes late (another process, a cold cache) and never early, so every update is a small
step up or down by the sign of the error: the estimate settles on the median, and no outlier counts
for more than one. `level` follows what moves all passes alike, in tens of passes; each number of
rows follows slowly, and both prices of context together, by the passes that read more or less of it
than others. Between widths that were seen the cost is interpolated, past the last one it
goes on at its last slope, and it never falls with more rows. Rows come in tiles, so the curve has
steps; nothing here smooths them.

A timing decides how many draft nodes are verified and nothing else: no token depends on it.
"""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from foreword.model.batch import Batch, Segment
from foreword.protocols import KVStore, Model

WIDTHS = (
    1,
    16,
    32,
    2,
    4,
    8,
    17,
    24,
    33,
    48,
    64,
    12,
    20,
    28,
    40,
    49,
    6,
    3,
)  # measured in this order
CHUNK = 64  # rows of a pass that fills the context
CONTEXT = 256  # positions before the rows, when the price of context is measured
SECONDS = 0.4  # for all of `measure`
LEAST_OF_A_KEY = 5e-5  # share of a pass that reading one key costs at least: noise must not hide it
MOST_OF_A_PASS = 0.25  # share of a pass that CONTEXT may cost: what is above is noise
LEVEL_STEP = 0.015  # share by which one pass may move the level
CONTEXT_STEP = 0.1  # and the prices of context, times how much more of the pass is context
CONTEXT_MEMORY = 0.99  # share of the past that a pass leaves in the usual share of context
CONTEXT_PRICES = (0.05, 20.0)  # of what was measured, least and most
KINDS = (2, 9)  # rows from which a pass is of the next kind; aftermath is learned by kind
AFTER_STEP = 0.03  # share of a row's pass by which one pass may move an aftermath
AFTER_MOST = 1.0
FALL_MEMORY = 0.95  # share of the past that a pass leaves in how often a narrower one follows
SHAPE_STEP, FIRST_STEP = 0.004, 0.1  # and the cost of its own width, in the long run and at first


class CostCurve:
    """Seconds of a pass whose rows all want logits. measured: seconds by rows, without context."""

    def __init__(
        self,
        measured: Mapping[int, float],
        context_cost: float = 0.0,
        row_context_cost: float = 0.0,
    ) -> None:
        assert measured, "a curve needs a point"
        assert all(rows > 0 and seconds > 0.0 for rows, seconds in measured.items()), measured
        self._context_costs = context_cost, row_context_cost
        self._context = 1.0  # what the prices of context have turned out to be, of the measured
        self._share: float | None = None  # of passes lately that was context
        self._after = [0.0] * (len(KINDS) + 1)  # shares of a row's pass
        self._falls = [1.0] * (len(KINDS) + 1)  # how often the next pass is narrower
        self._before = 0  # rows of the last pass
        self.version = 0  # counts changes of the table
        self._level = 1.0
        self._shape = dict(measured)
        self._counts = dict.fromkeys(measured, 1)
        self._table: list[float] = []

    def table(self, rows: int) -> list[float]:
        """[rows + 1]: seconds of a pass of 0, 1, ... rows without context; entry 0 is entry 1."""
        if len(self._table) <= rows:
            self._table = self._interpolated(max(rows, 2 * len(self._table)))
            self.version += 1
        return self._table

    def seconds(self, rows: int, keys: int = 0, row_keys: int = 0, before: int = 0) -> float:
        """Expected seconds; keys: positions held by the sequences; row_keys: that, for each row;
        before: rows of the pass before it."""
        context = self.context_cost * keys + self.row_context_cost * row_keys
        table = self.table(max(rows, 1))
        after = self._after[_kind(before)] * table[1] if before > rows else 0.0
        return self._level * (table[rows] + after) + context

    def aftermath(self, rows: int, count: int) -> list[float]:
        """[count + 1]: seconds that passes of `rows`, rows + 1, ... will cost the pass after them.
        Where `rows` alone are what every pass has, nothing."""
        one = self._level * self.table(rows + count)[1]
        prices = [one * after * fall for after, fall in zip(self._after, self._falls, strict=True)]
        return [0.0] + [prices[_kind(width)] for width in range(rows + 1, rows + count + 1)]

    @property
    def context_cost(self) -> float:
        """Seconds a key that is read, once for each sequence."""
        return self._level * self._context * self._context_costs[0]

    @property
    def row_context_cost(self) -> float:
        """Seconds a key that a row sees."""
        return self._level * self._context * self._context_costs[1]

    @property
    def level(self) -> float:
        """Seconds are `level * table`."""
        return self._level

    def observe(self, rows: int, keys: int, row_keys: int, seconds: float) -> None:
        """A pass took `seconds`."""
        before, self._before = self._before, rows
        expected = self.seconds(rows, keys, row_keys, before)
        late = seconds > expected
        kind = _kind(before)
        self._falls[kind] += (1.0 - FALL_MEMORY) * ((rows < before) - self._falls[kind])
        if rows < before and kind > 0:
            after = self._after[kind] + (AFTER_STEP if late else -AFTER_STEP)
            self._after[kind] = min(max(after, 0.0), AFTER_MOST)
            return
        share = 1.0 - self._level * self.table(rows)[rows] / expected
        usual = share if self._share is None else self._share
        self._share = CONTEXT_MEMORY * usual + (1.0 - CONTEXT_MEMORY) * share
        move = CONTEXT_STEP * (share - usual)
        context = self._context * (1.0 + move if late else 1.0 - move)
        self._context = min(max(context, CONTEXT_PRICES[0]), CONTEXT_PRICES[1])
        self._level *= 1.0 + LEVEL_STEP if late else 1.0 / (1.0 + LEVEL_STEP)
        count = self._counts.get(rows, 0)
        step = max(SHAPE_STEP, FIRST_STEP / (1 + count))
        known = self._shape[rows] if rows in self._shape else self.table(rows)[rows]
        self._shape[rows] = known * (1.0 + step if late else 1.0 / (1.0 + step))
        self._counts[rows] = count + 1
        if count < 16 or count % 16 == 0:  # the table need not be of this second
            self._table = []

    def points(self) -> list[tuple[int, float]]:
        """(rows, seconds) of every width that was measured or seen, never falling."""
        widths = sorted(self._shape)
        costs = _rising([self._shape[width] for width in widths], [self._counts[w] for w in widths])
        return [(width, self._level * cost) for width, cost in zip(widths, costs, strict=True)]

    def _interpolated(self, rows: int) -> list[float]:
        points = [(width, cost / self._level) for width, cost in self.points()]
        table = [points[0][1]] * (points[0][0] + 1)
        for (left, low), (right, high) in pairwise(points):
            slope = (high - low) / (right - left)
            table += [low + slope * step for step in range(1, right - left + 1)]
        (first, low), (last, high) = points[max(0, len(points) - 4)], points[-1]
        slope = (high - low) / (last - first) if last > first else high / last
        return table + [high + slope * step for step in range(1, rows + 2 - len(table))]


def _kind(rows: int) -> int:
    return bisect(KINDS, rows)


def _rising(values: list[float], weights: list[int]) -> list[float]:
    """The nearest sequence that never falls (pool adjacent violators), by weighted squares."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        block = (value, float(weight), 1)
        while blocks and blocks[-1][0] > block[0]:
            mean, heavy, length = blocks.pop()
            total = heavy + block[1]
            block = ((mean * heavy + block[0] * block[1]) / total, total, length + block[2])
        blocks.append(block)
    return [mean for mean, _, length in blocks for _ in range(length)]


def measure(
    model: Model, kv: KVStore, most: int, positions: int, seconds: float = SECONDS
) -> CostCurve:
    """Time passes of up to `most` rows on an empty store, the least of a few tries each.

    positions: what the model can hold; the rows that are timed all follow the same one. The store
    is left as it was found. Coarse widths come first: a large model that has used up `seconds`
    keeps what it has.
    """
    name = "measuring what a pass costs"
    context = min(CONTEXT, positions - 1, max(0, kv.capacity - most))
    room = min(most + context, kv.capacity)
    kv.begin(name, [0])
    try:
        if not kv.reserve(name, room):
            raise AssertionError("the store is measured before anything else holds room in it")
        timer = _Timer(model, kv, kv.slots(name)[:room])
        return timer.curve(min(most, room - context), context, seconds)
    finally:
        kv.free(name)


class _Timer:
    """Passes over slots that nobody else holds."""

    def __init__(self, model: Model, kv: KVStore, slots: np.ndarray) -> None:
        self._model, self._kv, self._slots = model, kv, slots
        self._context = 0  # positions filled: the first slots; the rows that are timed come behind
        self._least: dict[tuple[int, int], float] = {}  # (rows, context) -> seconds

    def curve(self, most: int, context: int, seconds: float) -> CostCurve:
        end = time.perf_counter() + seconds
        context = self._context = self._fill(context, most, end - seconds / 2)
        wanted = [(rows, 0) for rows in WIDTHS if rows <= most]
        wanted[3:3] = [(1, 0), (1, context), (min(16, most), 0), (min(16, most), context)]
        for cold in (True, False, False):
            for rows, before in wanted:
                if time.perf_counter() < end or (cold and len(self._least) < 2):
                    self._time(rows, before)
        plain = {rows: cost for (rows, before), cost in self._least.items() if before == 0}
        return CostCurve(plain, *self._prices(plain, context, min(16, most)))

    def _fill(self, context: int, most: int, end: float) -> int:
        """Write K and V of the first positions, `most` rows a pass, until `end`; how many."""
        filled = 0
        while filled < context and time.perf_counter() < end:
            chunk = min(CHUNK, most, context - filled)
            slots = self._slots[: filled + chunk]
            self._model.forward(Batch.of([Segment.chain((0,) * chunk, slots)]), self._kv)
            filled += chunk
        return filled

    def _prices(self, plain: Mapping[int, float], context: int, rows: int) -> tuple[float, float]:
        """Seconds a key read and a key seen: a row sees its keys, a sequence reads them once."""
        if (rows, context) not in self._least or rows not in plain or context < 1:
            return 0.0, 0.0
        one = min(max(0.0, self._least[1, context] - plain[1]), MOST_OF_A_PASS * plain[1])
        most = max(one, MOST_OF_A_PASS * plain[rows])
        many = min(max(one, self._least[rows, context] - plain[rows]), most)
        seen = (many - one) / ((rows - 1) * context) if rows > 1 else 0.0
        return max(LEAST_OF_A_KEY * plain[1], one / context - seen), seen

    def _time(self, rows: int, context: int) -> None:
        room = self._slots[self._context - context : self._context + rows]
        wanted = tuple(range(rows))
        segment = Segment((0,) * rows, (-1,) * rows, context, room, wanted)
        batch = Batch.of([segment])
        for _ in range(1 + (rows < KINDS[-1])):  # the aftermath of a wider pass is not this one's
            started = time.perf_counter()
            self._model.forward(batch, self._kv)
            passed = time.perf_counter() - started
        known = self._least.get((rows, context), passed)
        self._least[rows, context] = min(known, passed)
