"""Rows do not see each other: the same token after the same prefix has the same bits, always.

Plain decoding (one token a pass, alone, slots in order) is the definition; every other arrangement
is compared with it bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rig import (
    BASE,
    CONFIGS,
    SLOTS,
    VOCAB,
    assert_same_bits,
    build,
    decoder,
    ids_of,
    in_blocks,
    line,
    one_by_one,
    one_pass,
    stages,
    store,
    straight,
)

from foreword.model.batch import Batch, Segment

GRID = [(name, numerics) for name in CONFIGS for numerics in ("float32", "bfloat16")]
SMALL = [("llama", "float32"), ("mixed", "bfloat16"), ("qwen3", "float32"), ("biased", "bfloat16")]
every_model = pytest.mark.parametrize(("name", "numerics"), GRID)
some_models = pytest.mark.parametrize(("name", "numerics"), SMALL)


def neighbours(model: Any, kv: Any, rows: int, seed: int) -> list[Segment]:
    """Segments of other sequences, `rows` rows in all, written into slots from 64 on."""
    random = np.random.default_rng(seed)
    free = random.permutation(np.arange(64, SLOTS))
    segments = []
    while rows:
        own = int(min(rows, random.integers(1, 6)))
        cached = int(random.integers(0, 12))
        slots, free = free[: cached + own], free[cached + own :]
        ids = ids_of(cached + own, int(random.integers(1 << 30)))
        if cached:
            model.forward(Batch.of([line(ids, slots[:cached], 0, cached)]), kv)
        segments.append(line(ids, slots, cached, cached + own))
        rows -= own
    return segments


@every_model
def test_row_alone_equals_the_row_among_up_to_64(name: str, numerics: str) -> None:
    model, ids = decoder(name, numerics), ids_of(21)
    wanted = one_by_one(model, ids)[-1]
    for width in (2, 3, 9, 16, 17, 33, 64):
        kv = store(model)
        one_pass(model, ids[:-1], kv)
        others = neighbours(model, kv, width - 1, width)
        for place in {0, len(others) // 2, len(others)}:
            mine = line(ids, straight(21), 20, 21)
            segments = [*others[:place], mine, *others[place:]]
            row = sum(len(segment.tokens) for segment in others[:place])
            got = model.forward(Batch.of(segments), kv)[row]
            assert_same_bits(got, wanted, f"row {row} of {width}")


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(
    ("name", "numerics"), [("mixed", "float32"), ("qwen3", "bfloat16"), ("biased", "float32")]
)
def test_each_op_computes_a_row_the_same_way_at_every_place(
    name: str, numerics: str, backend: str
) -> None:
    """After every op of every layer, so that a failure names the op that moved."""
    model, ids = decoder(name, numerics, backend), ids_of(12)
    lone = store(model)
    one_pass(model, ids[:-1], lone)
    wanted = list(stages(model, Batch.of([line(ids, straight(12), 11, 12)]), lone))
    for width in (2, 13) if backend == "reference" else (2, 15, 16, 17, 31, 48, 64):
        kv = store(model)
        one_pass(model, ids[:-1], kv)
        others = neighbours(model, kv, width - 1, width)
        for place in (0, len(others)):
            segments = [*others[:place], line(ids, straight(12), 11, 12), *others[place:]]
            row = sum(len(segment.tokens) for segment in others[:place])
            got = stages(model, Batch.of(segments), kv)
            for (op, mine), (_, alone) in zip(got, wanted, strict=True):
                assert_same_bits(mine[row], alone[0], f"{op}, row {row} of {width}")


@every_model
def test_prefill_equals_decode_equals_any_chunking(name: str, numerics: str) -> None:
    model, ids = decoder(name, numerics), ids_of(50, 3)
    wanted = one_by_one(model, ids)
    for sizes in ([50], [1, 2, 3, 5, 9], [7], [16], [17, 15], [33]):
        assert_same_bits(in_blocks(model, ids, sizes), wanted, f"chunks {sizes}")


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_the_reference_backend_keeps_the_same_promise(numerics: str) -> None:
    model, ids = decoder("mixed", numerics, "reference"), ids_of(20, 4)
    wanted = one_by_one(model, ids)
    scattered = np.random.default_rng(0).permutation(np.arange(1, SLOTS))[:20]
    assert_same_bits(one_pass(model, ids), wanted)
    assert_same_bits(in_blocks(model, ids, [3, 7], slots=scattered), wanted)


@every_model
def test_scattered_slots_do_not_matter(name: str, numerics: str) -> None:
    model, ids = decoder(name, numerics), ids_of(40, 5)
    wanted = one_by_one(model, ids)
    random = np.random.default_rng(1)
    for slots in (straight(40)[::-1].copy(), random.permutation(np.arange(1, SLOTS))[:40]):
        assert_same_bits(in_blocks(model, ids, [11], slots=slots), wanted)


@pytest.mark.parametrize("threads", [2, 3])
@some_models
def test_thread_count_does_not_matter(name: str, numerics: str, threads: int) -> None:
    ids, wanted = ids_of(50, 6), one_by_one(decoder(name, numerics), ids_of(50, 6))
    model = build(CONFIGS[name], numerics, threads=threads)
    try:
        assert_same_bits(one_pass(model, ids), wanted)
        assert_same_bits(in_blocks(model, ids, [1, 4]), wanted)
    finally:
        model.kernels.close()


def random_tree(rows: int, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    random = np.random.default_rng(seed)
    parents = (-1, *(int(random.integers(-1, row)) for row in range(1, rows)))
    return tuple(random.integers(0, VOCAB, rows).tolist()), parents


def path_to(parents: tuple[int, ...], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@every_model
def test_tree_nodes_equal_their_own_line(name: str, numerics: str) -> None:
    """A ragged tree that crosses partitions, slots scattered, another tree beside it."""
    model, prefix = decoder(name, numerics), ids_of(27, 7)
    tokens, parents = random_tree(24, 8)
    other_tokens, other_parents = random_tree(9, 9)
    kv, slots = store(model), np.random.default_rng(2).permutation(np.arange(1, SLOTS))
    mine, theirs = slots[: 27 + 24], slots[100 : 100 + 9]
    in_blocks(model, prefix, [27], kv, mine)
    segments = [
        Segment(other_tokens, other_parents, 0, theirs, ()),
        Segment(tokens, parents, 27, mine, tuple(range(24))),
    ]
    got = model.forward(Batch.of(segments), kv)
    for node in range(0, 24, 3):
        path = [tokens[index] for index in path_to(parents, node)]
        wanted = one_pass(model, [*prefix, *path])[-1]
        assert_same_bits(got[node], wanted, f"node {node} at depth {len(path)}")


@pytest.mark.parametrize("partition", [8, 20, 64])
def test_the_promise_holds_for_other_partitions(partition: int) -> None:
    model = build(CONFIGS["mixed"], partition=partition)
    ids = ids_of(45, 10)
    wanted = one_by_one(model, ids)
    for sizes in ([45], [9, 4]):
        assert_same_bits(in_blocks(model, ids, sizes), wanted)


@pytest.mark.parametrize("numerics", ["float32", "bfloat16"])
def test_the_default_partition_over_a_long_context(numerics: str) -> None:
    model = build(BASE, numerics, partition=128)
    ids = ids_of(400, 11)
    whole = one_pass(model, ids)
    assert_same_bits(in_blocks(model, ids, [129, 100]), whole)
    for end in (127, 128, 129, 255, 256, 257, 383, 384, 385, 400):
        kv = store(model)
        one_pass(model, ids[: end - 1], kv)
        got = model.forward(Batch.of([line(ids, straight(end), end - 1, end)]), kv)[0]
        assert_same_bits(got, whole[end - 1], f"position {end - 1}")


@some_models
def test_any_random_schedule(name: str, numerics: str) -> None:
    """Three sequences at once, random chunks, order, slots, and losing branches beside the rows."""
    model = decoder(name, numerics)
    sequences = [ids_of(length, 20 + length) for length in (40, 23, 31)]
    wanted = [one_by_one(model, ids) for ids in sequences]
    for seed in range(4):
        random = np.random.default_rng(seed)
        kv, free = store(model), list(random.permutation(np.arange(1, SLOTS)))
        done = [0, 0, 0]
        slots: list[list[int]] = [[], [], []]
        while any(at < len(ids) for at, ids in zip(done, sequences, strict=True)):
            segments, takers = [], []
            for index in random.permutation(3):
                ids, at = sequences[index], done[index]
                own = int(min(random.integers(0, 9), len(ids) - at))
                if not own:
                    continue
                extra = int(random.integers(0, 4))  # losing branches of the first row
                parents = (*range(-1, own - 1), *[0] * extra)
                tokens = (*ids[at : at + own], *ids_of(extra, seed))
                new = [free.pop() for _ in range(own + extra)]
                table = np.asarray(slots[index] + new, dtype=np.int64)
                slots[index] += new[:own]
                segments.append(Segment(tokens, parents, at, table, tuple(range(own))))
                takers.append((index, at, own))
                done[index] += own
            if not segments:
                continue
            rows = iter(model.forward(Batch.of(segments), kv))
            for index, at, own in takers:
                for position in range(at, at + own):
                    assert_same_bits(next(rows), wanted[index][position], f"{index}:{position}")


@pytest.mark.parametrize(("name", "numerics"), [("llama", "float32"), ("mistral", "bfloat16")])
def test_v02_16_tokens_in_blocks_batches_and_trees(name: str, numerics: str) -> None:
    model, ids = decoder(name, numerics), ids_of(16, 12)
    wanted = one_by_one(model, ids)
    for size in (1, 2, 3, 5, 9):
        assert_same_bits(in_blocks(model, ids, [size]), wanted, f"blocks of {size}")
    for batch in (1, 4, 8):
        segments = [line(ids, straight(16, 1 + 16 * index), 0, 16) for index in range(batch)]
        got = model.forward(Batch.of(segments), store(model))
        assert_same_bits(got, np.concatenate([wanted] * batch), f"batch of {batch}")
    # the same 16 tokens as a trunk with a wrong sibling at every depth
    tokens = [token for right in ids for token in (right, (right + 1) % VOCAB)]
    parents = [-1, -1, *(2 * (row // 2) - 2 for row in range(2, 32))]
    tree = Segment(tuple(tokens), tuple(parents), 0, straight(32), tuple(range(0, 32, 2)))
    assert_same_bits(model.forward(Batch.of([tree]), store(model)), wanted, "tree")


@pytest.mark.parametrize(
    ("numerics", "count"),
    [
        ("float32", 400),
        ("bfloat16", 400),
        pytest.param("float32", 2000, marks=pytest.mark.slow),
        pytest.param("bfloat16", 2000, marks=pytest.mark.slow),
    ],
)
def test_v02_random_prompts_never_flip(numerics: str, count: int) -> None:
    """The last token alone, or in one pass with 15 other prompts: 0 flips, 0 moved bits."""
    model, flips = decoder("llama", numerics), 0
    for start in range(0, count, 16):
        prompts = [ids_of(6, 1000 + start + index) for index in range(16)]
        kv = store(model)
        places = [straight(6, 1 + 6 * index) for index in range(16)]
        both = list(zip(prompts, places, strict=True))
        last = [Segment.chain(ids, slots) for ids, slots in both]
        packed = model.forward(Batch.of(last), kv)
        for row, (ids, slots) in enumerate(both):
            alone = model.forward(Batch.of([Segment.chain(ids[-1:], slots)]), kv)[0]
            flips += int(alone.argmax() != packed[row].argmax())
            assert_same_bits(alone, packed[row], f"prompt {start + row}")
    assert flips == 0
