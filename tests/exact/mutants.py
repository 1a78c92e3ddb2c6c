"""Planted faults: each breaks the library in one place, the way real engines have been broken.

A mutant is a function that patches the library through pytest's monkeypatch. The library stays
broken for the reference run too, as it would be in life; the audit must report every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from foreword import engine as loop
from foreword.accept.exact import ExactAcceptor
from foreword.engine import Engine, finish_reason
from foreword.kernels.torch import backend, pieces
from foreword.kernels.torch.linear import Blocks
from foreword.kv.pool import KVPool
from foreword.kv.prefix import PrefixIndex
from foreword.model.batch import Segment
from foreword.sample import noise
from foreword.types import DraftTree, Sequence, Verdict

Mutant = Callable[[pytest.MonkeyPatch], None]


def first_child(tree: DraftTree, node: int) -> int | None:
    return next((i for i in range(1, len(tree)) if tree.parents[i] == node), None)


# The loop ----------------------------------------------------------------------------------------


def accept_one_too_many(patch: pytest.MonkeyPatch) -> None:
    """Where the walk ends at a node with children, the first of them is taken nevertheless."""
    walk = Engine._walk

    def broken(self: Engine, sequence: Sequence, tree: DraftTree, rows: np.ndarray) -> Verdict:
        verdict = walk(self, sequence, tree, rows)
        child = first_child(tree, verdict.path[-1] if verdict.path else 0)
        if verdict.finished or child is None:
            return verdict
        sequence.token_ids[-1] = tree.tokens[child]
        token, finished = self._chooser(sequence)(rows[child])
        tokens = (*verdict.tokens[:-1], tree.tokens[child], token)
        return Verdict(tokens, (*verdict.path, child), verdict.num_accepted + 1, finished)

    patch.setattr(Engine, "_walk", broken)


def first_draft_unverified(patch: pytest.MonkeyPatch) -> None:
    """The first child of the root is taken as it is; verification starts below it."""
    walk = Engine._walk

    def broken(self: Engine, sequence: Sequence, tree: DraftTree, rows: np.ndarray) -> Verdict:
        node = first_child(tree, 0)
        if node is None or sequence.remaining < 2:
            return walk(self, sequence, tree, rows)
        choose = self._chooser(sequence)
        choose(rows[0])
        sequence.token_ids[-1], sequence.finish_reason = tree.tokens[node], None
        tokens, path = [tree.tokens[node]], [node]
        while True:
            token, finished = choose(rows[node])
            tokens.append(token)
            child = tree.child(node, token)
            if finished or child is None:
                return Verdict(tuple(tokens), tuple(path), len(path), finished)
            path.append(child)
            node = child

    patch.setattr(Engine, "_walk", broken)


def end_inside_path_ignored(patch: pytest.MonkeyPatch) -> None:
    """An end token that a draft had guessed does not end the walk."""

    def broken(self: ExactAcceptor, tree: DraftTree, rows: np.ndarray, choose: Any) -> Verdict:
        tokens: list[int] = []
        path: list[int] = []
        node = 0
        while True:
            token, finished = choose(rows[node])
            tokens.append(token)
            child = tree.child(node, token)
            if child is None:
                return Verdict(tuple(tokens), tuple(path), len(path), finished)
            path.append(child)
            node = child

    patch.setattr(ExactAcceptor, "accept", broken)


def batch_mates_swapped(patch: pytest.MonkeyPatch) -> None:
    """Two sequences with trees of one size get each other's logits."""
    verify = loop.verify

    def broken(*arguments: Any) -> list[np.ndarray | None]:
        rows = verify(*arguments)
        sizes: dict[int, int] = {}
        for place, mine in enumerate(rows):
            if mine is None:
                continue
            other = sizes.setdefault(len(mine), place)
            if other != place:
                rows[place], rows[other] = rows[other], rows[place]
                break
        return rows

    patch.setattr(loop, "verify", broken)


def preemption_loses_sampler_state(patch: pytest.MonkeyPatch) -> None:
    """A preempted request comes back with the state of another seed."""
    plan = Engine._plan

    def broken(self: Engine) -> Any:
        chosen = plan(self)
        for sequence in chosen.preempted:
            request = replace(sequence.request, seed=sequence.request.seed ^ 1)
            sequence.sampler_state = self.parts.sampler.begin(request)
        return chosen

    patch.setattr(Engine, "_plan", broken)


# Positions and keys ------------------------------------------------------------------------------


def stale_kv_row(patch: pytest.MonkeyPatch) -> None:
    """Accepted rows stay where they were computed; what lies at their place is a rejected one."""
    patch.setattr(KVPool, "move", lambda self, source, destination: None)


def shifted_rope_position(patch: pytest.MonkeyPatch) -> None:
    """A node that is not right behind its parent is one position too far."""

    def broken(self: Segment) -> np.ndarray:
        depths = np.zeros(len(self.tokens), dtype=np.int64)
        for row, parent in enumerate(self.parents):
            if parent >= 0:
                depths[row] = depths[parent] + 1 + (parent != row - 1)
        return depths

    patch.setattr(Segment, "depths", broken)


def tree_seen_as_chain(patch: pytest.MonkeyPatch) -> None:
    """Every row of a tree sees all rows before it: the mask is causal, not the tree's."""
    trails = pieces._trails

    def broken(segment: Segment, lanes: int) -> list[pieces._Trail]:
        return trails(replace(segment, parents=tuple(range(-1, len(segment.tokens) - 1))), lanes)

    patch.setattr(pieces, "_trails", broken)


def prefix_hash_of_block_alone(patch: pytest.MonkeyPatch) -> None:
    """A page is found by its own ids, whatever came before them."""
    extend = PrefixIndex.extend
    patch.setattr(PrefixIndex, "extend", staticmethod(lambda parent, ids: extend(b"", ids)))


# Chance ------------------------------------------------------------------------------------------


def shifted_noise_position(patch: pytest.MonkeyPatch) -> None:
    """All tokens of one step draw the noise of its first position."""

    def broken(self: Engine, sequence: Sequence) -> Any:
        first = sequence.num_output

        def choose(row: np.ndarray) -> tuple[int, bool]:
            choice = self.parts.sampler.choose(
                row, sequence.request.params, sequence.sampler_state, first
            )
            sequence.token_ids.append(choice.token_id)
            sequence.logprobs.append(choice.logprobs)
            sequence.finish_reason = finish_reason(sequence, choice.token_id)
            return choice.token_id, sequence.finish_reason is not None

        return choose

    patch.setattr(Engine, "_chooser", broken)


def shared_random_stream(patch: pytest.MonkeyPatch) -> None:
    """One running generator serves whoever asks next."""
    generator = np.random.default_rng(0)

    def broken(seed: int, position: int, ids: Any) -> np.ndarray:
        count = ids if isinstance(ids, int) else len(ids)
        return generator.integers(0, 2**64, count, dtype=np.uint64)

    patch.setattr(noise, "words", broken)


def noise_ignores_position(patch: pytest.MonkeyPatch) -> None:
    words = noise.words
    patch.setattr(noise, "words", lambda seed, position, ids: words(seed, 0, ids))


def noise_ignores_seed(patch: pytest.MonkeyPatch) -> None:
    words = noise.words
    patch.setattr(noise, "words", lambda seed, position, ids: words(0, position, ids))


# Numerics ----------------------------------------------------------------------------------------


def unrounded_same_pass_key(patch: pytest.MonkeyPatch) -> None:
    """A pass attends to its own keys and values before they are rounded to the KV format."""
    attend_input, attend = backend.TorchKernels.attend_input, backend.TorchKernels.attend
    wide: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def write(
        self: Any, layer: Any, hidden: Any, step: Any, keys: Any, values: Any, *more: Any
    ) -> Any:
        full = keys.float(), values.float()
        query = attend_input(self, layer, hidden, step, *full, *more)
        keys.copy_(full[0])
        values.copy_(full[1])
        wide[id(step)] = full
        return query

    def read(self: Any, layer: Any, query: Any, step: Any, keys: Any, values: Any) -> Any:
        return attend(self, layer, query, step, *wide.pop(id(step)))

    patch.setattr(backend.TorchKernels, "attend_input", write)
    patch.setattr(backend.TorchKernels, "attend", read)


def split_k(tiles: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    half = weight.shape[1] // 2
    return linear(tiles[..., :half], weight[:, :half]) + linear(tiles[..., half:], weight[:, half:])


def m_dependent_matmul(patch: pytest.MonkeyPatch) -> None:
    """With more than two rows, products are summed in two halves."""
    apply = Blocks.apply

    def broken(self: Blocks, tiles: torch.Tensor, workers: Any) -> torch.Tensor:
        rows = int((tiles != 0).any(-1).sum())
        if rows <= 2:
            return apply(self, tiles, workers)
        return torch.cat([split_k(tiles, part) for part in self.parts], dim=-1).float()

    patch.setattr(Blocks, "apply", broken)


def thread_dependent_matmul(patch: pytest.MonkeyPatch) -> None:
    """With more than one thread, products are summed in two halves."""
    apply = Blocks.apply

    def broken(self: Blocks, tiles: torch.Tensor, workers: Any) -> torch.Tensor:
        if workers.threads == 1:
            return apply(self, tiles, workers)
        return torch.cat([split_k(tiles, part) for part in self.parts], dim=-1).float()

    patch.setattr(Blocks, "apply", broken)


def host_switches_not_pinned(patch: pytest.MonkeyPatch) -> None:
    """Autocast and friends of the host program reach the products."""
    patch.setattr(backend.TorchKernels, "guard", lambda self: torch.inference_mode())


NAMED_BY_THE_CONTRACT: dict[str, Mutant] = {
    "accept one too many": accept_one_too_many,
    "unverified first token": first_draft_unverified,
    "stale KV row": stale_kv_row,
    "shifted position: rope": shifted_rope_position,
    "shifted position: noise": shifted_noise_position,
    "shared random stream": shared_random_stream,
    "unrounded same-pass key": unrounded_same_pass_key,
    "M-dependent matmul": m_dependent_matmul,
}
MORE: dict[str, Mutant] = {
    "noise ignores the position": noise_ignores_position,
    "noise ignores the seed": noise_ignores_seed,
    "end inside the path ignored": end_inside_path_ignored,
    "batch mates swapped": batch_mates_swapped,
    "preemption loses sampler state": preemption_loses_sampler_state,
    "tree seen as a chain": tree_seen_as_chain,
    "prefix hash of the block alone": prefix_hash_of_block_alone,
    "thread-dependent matmul": thread_dependent_matmul,
    "host switches not pinned": host_switches_not_pinned,
}
