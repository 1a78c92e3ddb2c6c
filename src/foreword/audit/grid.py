"""Few settings that meet every pair: a greedy covering array, and the proof that it covers.

Idea: most faults need two things at once (a tree *and* a full page, a hit *and* a chunk), so a set
of rows in which every two values of any two axes meet finds what the full product would, at a
fraction of the rows (pairwise testing; the greedy is in the manner of AETG, Cohen et al. 1997).
Deterministic: no chance, no clock. Knows names and values only, nothing of engines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import combinations

Value = str | int
Axes = Mapping[str, SequenceOf[Value]]
Row = dict[str, Value]
Pair = tuple[tuple[str, Value], tuple[str, Value]]  # two axes in their order, a value of each

CANDIDATES = 12  # rows tried for each row kept


def covering_array(axes: Axes) -> list[Row]:
    """Rows with one value per axis, such that every pair of values of two axes is in some row.

    The first rows cover the most: any prefix is the best short selection the greedy knows. Every
    axis needs at least one value; values of an axis are distinct.
    """
    names = list(axes)
    assert all(len(set(axes[name])) == len(axes[name]) > 0 for name in names), axes
    if len(names) < 2:
        return [{name: value} for name in names for value in axes[name]]
    missing = dict.fromkeys(all_pairs(axes))  # ordered
    rows = []
    while missing:
        row = _best_row(axes, missing)
        rows.append({name: row[name] for name in names})
        for pair in pairs_of(rows[-1]):
            missing.pop(pair, None)
    return rows


def all_pairs(axes: Axes) -> Iterator[Pair]:
    for first, second in combinations(axes, 2):
        for left in axes[first]:
            for right in axes[second]:
                yield (first, left), (second, right)


def pairs_of(row: Mapping[str, Value]) -> Iterator[Pair]:
    """The pairs one row covers; `row` holds the axes in their order."""
    yield from combinations(row.items(), 2)


def uncovered(axes: Axes, rows: SequenceOf[Mapping[str, Value]]) -> list[Pair]:
    """The proof: pairs that no row holds, counted anew from the rows alone. Empty = covered.
    AssertionError when a row has a value that is not on its axis."""
    seen: set[Pair] = set()
    for row in rows:
        assert set(row) == set(axes), row
        ordered = {name: row[name] for name in axes}
        assert all(value in axes[name] for name, value in ordered.items()), row
        seen.update(pairs_of(ordered))
    return [pair for pair in all_pairs(axes) if pair not in seen]


def _best_row(axes: Axes, missing: Mapping[Pair, None]) -> Row:
    """The best of a few rows, each grown from a pair that is still missing, first ones first."""
    order = {name: place for place, name in enumerate(axes)}
    starts = list(missing)
    step = max(1, len(starts) // CANDIDATES)
    best: Row = {}
    most = 0
    for start in starts[::step][:CANDIDATES]:
        row = _grow(dict(start), axes, missing, order)
        gain = _gain(row, missing, order)
        if gain > most:
            best, most = row, gain
    return best


def _grow(row: Row, axes: Axes, missing: Mapping[Pair, None], order: Mapping[str, int]) -> Row:
    """Fill in the other axes, the widest first, each with the value that covers most."""
    for name in sorted(axes, key=lambda name: (-len(axes[name]), order[name])):
        if name in row:
            continue
        values = axes[name]
        shift = len(missing) % len(values)  # spread ties over the values
        turned = [*values[shift:], *values[:shift]]
        gains = [_gain_of(name, value, row, missing, order) for value in turned]
        row[name] = turned[gains.index(max(gains))]
    return row


def _gain_of(
    name: str, value: Value, row: Row, missing: Mapping[Pair, None], order: Mapping[str, int]
) -> int:
    """Missing pairs that `value` would cover with what `row` has so far."""
    own = (name, value)
    return sum(
        ((other, own) if order[other[0]] < order[name] else (own, other)) in missing
        for other in row.items()
    )


def _gain(row: Row, missing: Mapping[Pair, None], order: Mapping[str, int]) -> int:
    ordered = {name: row[name] for name in sorted(row, key=order.__getitem__)}
    return sum(pair in missing for pair in pairs_of(ordered))
