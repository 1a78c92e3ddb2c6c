"""Exactness 100 % over a covering array: every two values of any two settings meet in some row.

Axes: checkpoint and numerics, drafter, tree, nodes (64 with the root), requests at once (1..16),
arrival order, rows per pass (chunk size), store, page size, prefix cache, forced preemption,
threads, and a host program that has flipped every global switch. Each row runs some of 30 fixed
jobs (prompts of 1 to 300 tokens, so up to three attention partitions; greedy, and sampled in three
ways; every fifth ends at a declared EOS) and compares token ids, logprobs and finish reasons with
plain decoding alone. CI runs the first rows, which cover the most, and the first one of every
drafter and of every instruction set and mode of backend cpu; the others are slow. A new file in
draft/ is a value of its axis.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from harness import Job, Rig, declared, drive, prompt, rig

import apparatus
from foreword.audit.grid import Axes, Row, covering_array, uncovered
from foreword.audit.host import host_settings
from foreword.build import names
from foreword.config import NUMERICS
from foreword.draft.scripted import Node, Reference, Script, chain, right_by_chance, right_until
from foreword.engine import Engine
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.backend import ISAS, load_native
from foreword.types import DraftTree, Sequence

IN_CI = 10
DEPTH = 21  # longest draft path; three children a level fill a tree of 64 nodes
LONG = (5, 14, 25)  # jobs with so much to come that such a tree is worth verifying
SPARE = 2  # jobs beyond the batch, so that seats change hands
URGENT_AFTER = 5  # steps before the second, more urgent half arrives

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama float32": {},
    "llama bfloat16": {"numerics": "bfloat16", "num_layers": 3},  # the least `skip` can skip of
    "mistral float32 window": {"architecture": "mistral", "sliding_window": 100},
    "qwen3 bfloat16 untied": {"architecture": "qwen3", "numerics": "bfloat16", "tied": False},
}
# As they are, "cascade" around a noisy model; of `model` and `scripted` there are variants.
FOLDER = tuple(name for name in names("draft") if name not in ("none", "model", "scripted"))
AXES: Axes = {
    "checkpoint": tuple(CHECKPOINTS),
    "format": ("auto", "int8"),
    "drafter": ("none", "self", "noise", "anti", "bushy", *FOLDER),
    "tree": ("chain", "best_first"),
    "nodes": (1, 7, 16, 63),
    "batch": tuple(range(1, 17)),
    "arrival": ("together", "staggered", "reversed"),
    "rows": (17, 40, 64, 256),
    "store": ("paged", "dense"),
    "block": (4, 16),
    "prefix": ("off", "cold", "warm", "shared"),
    "preemption": ("none", "memory", "priority"),
    "threads": (1, 2, 3),
    "host": ("clean", "hostile"),
}
# Backend cpu on every instruction set, in every mode; instruction sets not here are skipped.
CPU: dict[str, dict[str, Any]] = {
    f"cpu {isa} {numerics}": {
        "backend": "cpu",
        "isa": isa,
        "numerics": numerics,
        "quantization": {"a16": "int4", "a8": "int8"}.get(numerics),
        **({"architecture": "qwen3", "num_layers": 3} if numerics == "bfloat16" else {}),
    }
    for isa in ISAS
    for numerics in NUMERICS
}
CPU_AXES = {**AXES, "checkpoint": tuple(CPU), "batch": (1, 2, 5, 9, 16)}
TORCH_ROWS, CPU_ROWS = covering_array(AXES), covering_array(CPU_AXES)
ROWS = TORCH_ROWS + CPU_ROWS
FIRST_OF_CPU = {str(row["checkpoint"]): place for place, row in reversed([*enumerate(ROWS)])}
FIRST_OF_DRAFTER = {str(row["drafter"]): place for place, row in reversed([*enumerate(ROWS)])}
QUICK = {*range(IN_CI), *(FIRST_OF_CPU[name] for name in CPU), *FIRST_OF_DRAFTER.values()}
CHECKPOINTS |= CPU
LENGTHS = (1, 130, 7, 300, 31, 64, 2, 127, 128, 16)
LIMITS = (24, 9, 17, 1, 12)
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 1.0, "top_k": 20},
    {"temperature": 1.3, "min_p": 0.02},
)
HAPPENED: Counter[str] = Counter()  # what the rows of this session reached


def target_of(checkpoint: str, form: str, **more: Any) -> Rig:
    return rig(**CHECKPOINTS[checkpoint], kv_cache_dtype=form, **more)


@cache
def jobs_of(checkpoint: str, form: str = "auto") -> list[Job]:
    """They do not change from row to row."""
    return list(_jobs(target_of(checkpoint, form)))


def _jobs(target: Rig) -> Iterable[Job]:
    trunk = prompt(300, 1)
    for number in range(30):
        length = LENGTHS[number % len(LENGTHS)]
        ids = prompt(length, number)
        if 10 <= number < 20:  # repetitive, so that n-grams are found
            ids = (prompt(5, number) * length)[:length]
        elif number >= 20:  # a common beginning
            ids = trunk[: length - length // 5] + ids[: length // 5]
        limit = 70 if number in LONG else LIMITS[number % len(LIMITS)]
        job = Job(ids, limit, seed=number, **SAMPLINGS[number % len(SAMPLINGS)])
        if number % 5 == 2:
            with suppress(AssertionError):  # an output that only loops has no such id: no EOS
                job = declared(target, job, 6)
        yield job


def bushy(reference: Reference, vocab_size: int) -> Script:
    """Three children at every node of the path; the right one comes second, if at all: accepted
    rows are scattered over the tree and must move in the cache."""
    right = right_by_chance(0.8)

    def script(sequence: Sequence, budget: int) -> Iterable[Node]:
        start, parent = sequence.num_output, -1
        for depth, token in enumerate(reference(sequence)[start : start + DEPTH]):
            yield parent, (token + 1) % vocab_size, 0.8
            yield parent, token if right(sequence, depth) else (token + 3) % vocab_size, 0.9
            yield parent, (token + 2) % vocab_size, 0.7
            parent = 3 * depth + 1

    return script


def engine_for(row: Row, target: Rig, jobs: list[Job]) -> Engine:
    drafter, block = str(row["drafter"]), int(row["block"])
    setting: dict[str, Any] = {"method": drafter}
    if drafter in ("self", "noise", "cascade"):
        noisy = target_of(str(row["checkpoint"]), str(row["format"]), noise=apparatus.NOISE)
        setting["draft"] = target if drafter == "self" else noisy
        if drafter != "cascade":
            setting["method"] = "model"
    elif drafter == "anti":
        answers = target.answers(jobs, DEPTH)
        setting = {"script": chain(answers, DEPTH, right_until(0), target.vocab_size)}
    elif drafter == "bushy":
        setting = {"script": bushy(target.answers(jobs), target.vocab_size)}
    pages = [-(-job.positions // block) for job in jobs]
    slots = (max(pages) + 2) * block  # one page is the null page
    if row["preemption"] != "memory":
        slots = sum(-(-(job.positions + 64) // block) + 2 for job in jobs) * block
    same = {name: row[name] for name in ("tree", "nodes", "batch", "rows", "store", "threads")}
    prefix = row["prefix"] != "off"
    return target.engine(k=DEPTH, block=block, slots=slots, prefix=prefix, **same, **setting)


def watch_trees(engine: Engine) -> list[int]:
    """The sizes of all trees the engine will verify, roots included; filled as it runs."""
    builder, sizes = engine.parts.builder, []
    build = builder.build

    def noting(*arguments: Any) -> list[DraftTree]:
        trees = build(*arguments)
        sizes.extend(len(tree) for tree in trees)
        return trees

    builder.build = noting  # type: ignore[method-assign]
    return sizes


def schedule(row: Row, jobs: list[Job]) -> list[tuple[int, int, Job]]:
    """(step, place, job); with "priority" the later ones are ever more urgent."""
    places = list(range(len(jobs)))
    if row["arrival"] == "reversed":
        places.reverse()
    timed = []
    for turn, place in enumerate(places):
        step, job = turn if row["arrival"] == "staggered" else 0, jobs[place]
        if row["preemption"] == "priority":
            step += URGENT_AFTER if turn >= len(jobs) // 2 else 0
            job = replace(job, priority=-turn)
        timed.append((step, place, job))
    return timed


def warm_up(row: Row, engine: Engine, jobs: list[Job]) -> None:
    """Fill the prefix cache with the very prompts, or with prompts that leave them half way."""
    if row["prefix"] not in ("warm", "shared"):
        return
    share = 1.0 if row["prefix"] == "warm" else 0.6
    cut = [
        replace(job, prompt=job.prompt[: max(1, int(share * len(job.prompt)))], max_tokens=1)
        for job in jobs
    ]
    drive(engine, [(0, place, job) for place, job in enumerate(cut)])


def here(name: str) -> bool:
    try:
        return bool(load_native().has_isa(CPU[name]["isa"]))
    except KernelUnavailable:
        return False


def test_every_two_values_meet() -> None:
    assert uncovered(AXES, TORCH_ROWS) == []
    assert uncovered(CPU_AXES, CPU_ROWS) == []
    assert len(TORCH_ROWS) >= 60
    assert len(CPU_ROWS) >= 90


@pytest.mark.parametrize(
    "place",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in range(len(ROWS))],
)
def test_row_equals_plain_decoding(place: int) -> None:
    row = ROWS[place]
    name = str(row["checkpoint"])
    if name in CPU and not here(name):
        pytest.skip(f"this machine or installation has no {name}")
    where = name, str(row["format"])
    target, every = target_of(*where), jobs_of(*where)
    number = min(int(row["batch"]) + SPARE, len(every))
    jobs = [every[(place * 7 + index) % len(every)] for index in range(number)]
    engine = engine_for(row, target, jobs)
    sizes = watch_trees(engine)
    for job in jobs:
        target.plain(job)
    with host_settings(str(row["host"])):
        warm_up(row, engine, jobs)
        results = drive(engine, schedule(row, jobs))
    engine.parts.kv.check()
    target.same(jobs, results, row)
    HAPPENED.update(
        rows=1,
        drafted=engine.stats.num_drafted,
        accepted=engine.stats.num_accepted,
        preempted=engine.parts.scheduler.num_preemptions,
        prefix_hits=engine.parts.kv.prefix_hits,
    )
    HAPPENED["largest_tree"] = max([HAPPENED["largest_tree"], *sizes])


def test_the_rows_reached_what_they_vary() -> None:
    """Drafts accepted and refused, requests preempted, prefixes found: counted, not assumed."""
    if HAPPENED["rows"] < IN_CI:
        pytest.skip(f"only {HAPPENED['rows']} rows of the array ran in this session")
    print(dict(HAPPENED))
    assert 0 < HAPPENED["accepted"] < HAPPENED["drafted"]
    assert HAPPENED["preempted"] > 0
    assert HAPPENED["prefix_hits"] > 0
    assert HAPPENED["largest_tree"] <= 64


@pytest.mark.parametrize(
    "name",
    [
        "llama float32",
        "llama bfloat16",
        pytest.param("mistral float32 window", marks=pytest.mark.slow),
        pytest.param("qwen3 bfloat16 untied", marks=pytest.mark.slow),
    ],
)
def test_trees_of_64_nodes_side_by_side(name: str) -> None:
    """Four requests, each with a whole tree of 21 levels of three in the same pass."""
    target = rig(**CHECKPOINTS[name])
    jobs = [jobs_of(name)[number] for number in (*LONG, 0)]
    script = bushy(target.answers(jobs), target.vocab_size)
    engine = target.engine(
        script=script, k=DEPTH, tree="best_first", nodes=63 * 4, batch=4, rows=1024, block=4
    )
    sizes = watch_trees(engine)
    target.same(jobs, drive(engine, [(0, place, job) for place, job in enumerate(jobs)]), name)
    engine.parts.kv.check()
    assert sizes.count(64) >= 3
    assert max(sizes) == 64
