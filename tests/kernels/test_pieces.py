"""Pieces of attention against their plain definition, and what planning them costs."""

from __future__ import annotations

import random
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

from foreword.kernels.torch import pieces as module
from foreword.kernels.torch.linear import TILE
from foreword.kernels.torch.pieces import PARTIALS, QUERIES, SHARED, Pieces, plan_pieces
from foreword.model.batch import Batch, Segment

CPU = torch.device("cpu")


def sights(segment: Segment, window: int | None, lanes: int) -> list[list[tuple[int, list[int]]]]:
    """Per row and partition it sees: the partition, and per lane the slot seen or 0."""
    paths: list[list[int]] = []
    for row, parent in enumerate(segment.parents):
        paths.append([*(paths[parent] if parent >= 0 else []), row])
    rows = []
    for path in paths:
        seen = [*range(segment.cached), *(segment.cached + row for row in path)]
        slots = [int(segment.slots[place]) for place in seen]
        if window is not None:
            hidden = max(0, len(slots) - window)
            slots = [0] * hidden + slots[hidden:]
        slots += [0] * (-len(slots) % lanes)
        parts = [slots[start : start + lanes] for start in range(0, len(slots), lanes)]
        rows.append([(part, own) for part, own in enumerate(parts) if any(own)])
    return rows


def plainly(batch: Batch, window: int | None, lanes: int) -> Any:
    """What `shown` shows, by the definition: who sees the same whole partition shares pieces."""
    groups: dict[Any, list[int]] = {}
    loose: list[tuple[int, list[int]]] = []
    entries: list[list[Any]] = []
    for segment in batch.segments:
        for own in sights(segment, window, lanes):
            row, mine = len(entries), []
            for part, slots in own:
                if all(slots):
                    groups.setdefault((part, tuple(slots)), []).append(row)
                    mine.append((part, tuple(slots)))
                else:
                    mine.append(len(loose))
                    loose.append((row, slots))
            entries.append(mine)
    tasks, numbers, piece = [], {}, 0
    for key, rows in groups.items():
        numbers |= {(key, row): piece * QUERIES + place for place, row in enumerate(rows)}
        cut = [rows[start : start + QUERIES] for start in range(0, len(rows), QUERIES)]
        cut = [[*chunk, *[chunk[-1]] * (QUERIES - len(chunk))] for chunk in cut]
        for first in range(0, len(cut), SHARED):
            some = cut[first : first + SHARED]
            tasks.append((list(range(piece, piece + len(some))), list(key[1]), some))
            piece += len(some)
    partial = [loose[start : start + PARTIALS] for start in range(0, len(loose), PARTIALS)]
    base, absent = piece * QUERIES, piece * QUERIES + len(partial) * PARTIALS
    steps = [
        [base + one if isinstance(one, int) else numbers[one, row] for one in mine]
        for row, mine in enumerate(entries)
    ]
    merge = []
    for start in range(0, len(steps), TILE):
        tile = [*steps[start : start + TILE]]
        tile += [[absent + 1]] * (TILE - len(tile))
        deepest = max(map(len, tile))
        merge.append([[*own, *[absent] * (deepest - len(own))] for own in tile])
    return tasks, partial, piece, len(partial), merge


def shown(plan: Pieces) -> Any:
    """The plan as plain lists. A lane that is hidden is shown as slot 0, as it has to be."""
    full = [
        (list(task.pieces), task.lanes.tolist(), [rows.tolist() for rows in task.members])
        for task in plan.full
    ]
    partial = []
    for number, task in enumerate(plan.partial):
        assert task.piece == number
        for place, lanes in enumerate(task.lanes):
            assert torch.equal(task.hidden[place, 0, 0], lanes == 0)
        assert not task.hidden[len(task.lanes) :].any()
        slots = (lanes.tolist() for lanes in task.lanes)
        partial.append(list(zip(task.rows, slots, strict=True)))
    merge = [tile.t().tolist() for tile in plan.merge]
    return full, partial, plan.num_full, plan.num_partial, merge


def random_segment(rng: random.Random, first_slot: int) -> Segment:
    count, cached = rng.choice((1, 1, 2, 3, 5, 9, 17, 40)), rng.choice((0, 1, 3, 4, 7, 8, 15, 16))
    kind = rng.choice(("chain", "tree", "long tree"))
    parents = [row - 1 for row in range(count)]
    if kind == "tree":
        parents = [rng.randint(-1, row - 1) for row in range(count)]
    if kind == "long tree":
        parents = [max(-1, row - 1 - rng.choice((0, 0, 0, 1, 2))) for row in range(count)]
    slots = first_slot + np.array(rng.sample(range(200), cached + count), dtype=np.int64)
    return Segment((0,) * count, tuple(parents), cached, slots, ())


@pytest.mark.parametrize("window", [None, 1, 2, 4, 5, 8, 13, 100])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16])
def test_pieces_are_those_of_the_definition(lanes: int, window: int | None) -> None:
    for seed in range(12):
        rng = random.Random(f"{lanes} {window} {seed}")
        batch = Batch.of(
            [random_segment(rng, 1 + 200 * place) for place in range(rng.randint(1, 4))]
        )
        found = shown(plan_pieces(batch, window, lanes, CPU))
        assert found == plainly(batch, window, lanes), f"seed {seed}"


def bytecodes(batch: Batch, window: int | None) -> int:
    """Bytecodes of pieces.py that planning runs."""
    counted = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal counted
        if frame.f_code.co_filename != module.__file__:
            return None
        frame.f_trace_opcodes = True
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        plan_pieces(batch, window, 128, CPU)
    finally:
        sys.settrace(before)
    return counted


@pytest.mark.parametrize("window", [None, 300])
def test_planning_a_chain_is_linear_in_its_length(window: int | None) -> None:
    counts = {}
    for rows in (1024, 4096):
        chain = Segment.chain(range(rows), np.arange(1, rows + 1))
        counts[rows] = bytecodes(Batch.of([chain]), window)
    assert counts[4096] < 5 * counts[1024], counts


def test_no_row_of_a_chain_holds_its_whole_path() -> None:
    """Tuples are built by one bytecode, whatever their length: bound what rows hold, too."""
    chain = Segment.chain(range(2048), np.arange(1, 2049))
    trails = module._trails(chain, 128)
    assert max(len(trail.rest) for trail in trails) < 128
    assert len({id(trail.wholes) for trail in trails}) == 1 + 2048 // 128
    assert len({id(whole) for trail in trails for whole in trail.wholes}) == 2048 // 128


def test_the_nodes_of_a_tree_share_the_cost_of_a_long_cached_prefix() -> None:
    counts = {}
    for nodes in (1, 16):
        parents = tuple((row - 1) // 2 if row else -1 for row in range(nodes))
        segment = Segment((0,) * nodes, parents, 8192, np.arange(1, 8193 + nodes), ())
        counts[nodes] = bytecodes(Batch.of([segment]), None)
    assert counts[16] < 2 * counts[1], counts
