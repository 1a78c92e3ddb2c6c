"""A toy world for acceptors: a target and a drafter that are Markov chains over a few tokens.

The rows are log-probabilities, so at temperature 1 and without filters the target's law after a
token is its line in a table. Everything else is real: the sampler, the engine's own `choose`, the
acceptors as `acceptance_of` makes them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from foreword.acceptance import acceptor_of
from foreword.engine import Engine
from foreword.sample.sampler import GumbelSampler
from foreword.types import DraftTree, Request, SamplingParams, Sequence, Trie, Verdict

SAMPLER = GumbelSampler()
DRAWING = SimpleNamespace(name="toy", draws=True)
SILENT = SimpleNamespace(name="none")

OPTIONS: dict[str, dict[str, Any]] = {"reward": {"scorer": lambda before, step: 1.0}}


def table(size: int, seed: int, spread: float = 1.0) -> np.ndarray:
    """float64 [size, size]: a law for each last token."""
    weights = np.exp(spread * np.random.default_rng(seed).standard_normal((size, size)))
    return weights / weights.sum(1, keepdims=True)


def logits(law: Any) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(law, dtype=np.float64)).astype(np.float32)


def new_sequence(
    acceptance: str,
    seed: int = 0,
    max_tokens: int = 4,
    drafter: Any = DRAWING,
    options: dict[str, Any] | None = None,
    grammar: Any = None,
    name: str = "0",
    ends: frozenset[int] = frozenset(),
    **fields: Any,
) -> Sequence:
    """A request of one token (id 0) with its acceptor."""
    fields = {"temperature": 1.0, **fields}
    if acceptance != "exact":
        given = OPTIONS.get(acceptance) if options is None else options
        fields |= {"acceptance": acceptance, "acceptance_options": given}
    params = SamplingParams(**fields).resolve({})
    request = Request(
        name, (0,), params, seed, max_tokens=max_tokens, grammar=grammar, eos_ids=ends
    )
    sequence = Sequence(request, [0])
    sequence.sampler_state = SAMPLER.begin(request)
    sequence.acceptor = acceptor_of(sequence, SAMPLER, drafter)
    return sequence


def chooser(sequence: Sequence) -> Any:
    """The engine's own."""
    stand_in: Any = SimpleNamespace(parts=SimpleNamespace(sampler=SAMPLER))
    return Engine._chooser(stand_in, sequence)


def drawn(sequence: Sequence, drafter: np.ndarray, depth: int) -> DraftTree:
    """A path of draws from the drafter's table, as draft/model.py makes it."""
    trie, node, last = Trie(), -1, sequence.token_ids[-1]
    start = sequence.num_output
    for level in range(depth):
        row, params = logits(drafter[last]), sequence.request.params
        law = SAMPLER.law(row, params, sequence.sampler_state, start + level)
        coin = SAMPLER.coin(sequence.sampler_state, start + level, 0, since=start + 1)
        last = law.draw(coin)
        node = trie.add(node, last, 0.5, "toy")
        trie.laws[node] = law
    return tree_of(sequence.token_ids[-1], trie)


def tree_of(root: int, trie: Trie) -> DraftTree:
    parents = (-1, *(parent + 1 for parent in trie.parents))
    tree = DraftTree((root, *trie.tokens), parents, ("", *trie.sources))
    return tree.with_laws(trie)


def rows_of(tree: DraftTree, target: np.ndarray) -> np.ndarray:
    return np.stack([logits(target[token]) for token in tree.tokens])


def step(sequence: Sequence, tree: DraftTree, target: np.ndarray) -> Verdict:
    """One pass; the statistics are kept as the engine keeps them."""
    assert sequence.acceptor is not None
    verdict = sequence.acceptor.accept(tree, rows_of(tree, target), chooser(sequence))
    sequence.stats.add(tree.num_drafted, verdict.num_accepted, len(verdict.tokens))
    return verdict


def write(sequence: Sequence, target: np.ndarray, drafter: np.ndarray, depth: int) -> list[int]:
    """The whole text, drafts drawn anew for each pass."""
    while sequence.finish_reason is None:
        step(sequence, drawn(sequence, drafter, depth), target)
    return sequence.output_ids
