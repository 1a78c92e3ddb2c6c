"""Drafts of requests whose text must have a form: what it forbids goes, what it forces comes.

A node that the form does not allow cannot be chosen by the target, nor can anything below it; its
row would be wasted. A token that is the only one the form allows is certain, and costs no model to
guess: source "grammar", score 1. Where JSON leaves only its blanks open, the layout so far says how
it probably goes on: source "layout". Both are added after the last committed token and after the
paths most likely to be reached. Cost: a microsecond or two per path and forced token.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from foreword.protocols import Scout
from foreword.types import Sequence, Trie

SOURCE = "grammar"
LAYOUT = "layout"
EXTENDED = 4  # paths of a drafter that are looked at for forced tokens behind them


class FormGuide:
    """Implements protocols.Guide. A scout stays with its sequence."""

    def fit(
        self, sequences: SequenceOf[Sequence], tries: SequenceOf[Trie], budget: SequenceOf[int]
    ) -> list[Trie]:
        return [
            _fitted(_scout(sequence), trie, limit)
            if limit > 0 and sequence.request.grammar is not None
            else trie
            for sequence, trie, limit in zip(sequences, tries, budget, strict=True)
        ]


def _scout(sequence: Sequence) -> Scout:
    """The sequence's own, after its last token."""
    assert sequence.request.grammar is not None
    if sequence.scout is None:
        sequence.scout = sequence.request.grammar.scout()
    scout: Scout = sequence.scout
    scout.follow(sequence.token_ids[sequence.num_prompt + scout.num_read :])
    return scout


def _fitted(scout: Scout, trie: Trie, limit: int) -> Trie:
    fitted = Trie()
    legal = _legal_nodes(scout, trie, scout.forced(())[:1])
    places = {-1: -1}
    for node in range(len(trie)):
        parent = places.get(trie.parents[node])
        if parent is not None and legal[node]:
            places[node] = fitted.add(
                parent,
                trie.tokens[node],
                trie.scores[node],
                trie.sources[node],
                trie.evidence[node],
            )
    _extend(fitted, -1, (), scout, limit)
    for leaf in _likely_leaves(fitted):
        path = _path(fitted, leaf)
        if len(path) < limit:
            _extend(fitted, leaf, path, scout, limit - len(path))
    return fitted


def _extend(trie: Trie, node: int, path: SequenceOf[int], scout: Scout, most: int) -> None:
    """Add what the form forces after `path`, which ends with `node`, or else what is likely."""
    tokens, source = scout.forced(path), SOURCE
    scores = [1.0] * len(tokens)
    if not tokens:
        (tokens, scores), source = scout.likely(path), LAYOUT
    for token, score in zip(tokens[:most], scores, strict=False):
        node = trie.add(node, token, score, source)


def _legal_nodes(scout: Scout, trie: Trie, only: SequenceOf[int]) -> list[bool]:
    """Per node: all tokens from the root to it may come. `only`: the one that may come first, or
    empty."""
    legal = [False] * len(trie)
    inner = set(trie.parents)
    for leaf in range(len(trie)):
        if leaf in inner:
            continue
        nodes = _nodes(trie, leaf)
        tokens = [trie.tokens[node] for node in nodes]
        if only and tokens[0] != only[0]:
            continue
        for node in nodes[: scout.legal(tokens)]:
            legal[node] = True
    return legal


def _likely_leaves(trie: Trie) -> list[int]:
    """The EXTENDED leaves most likely to be reached."""
    reaches: list[float] = []
    for parent, score in zip(trie.parents, trie.scores, strict=True):
        reaches.append(score * (reaches[parent] if parent >= 0 else 1.0))
    inner = set(trie.parents)
    leaves = [node for node in range(len(trie)) if node not in inner]
    return sorted(leaves, key=lambda leaf: -reaches[leaf])[:EXTENDED]


def _path(trie: Trie, node: int) -> list[int]:
    return [trie.tokens[one] for one in _nodes(trie, node)]


def _nodes(trie: Trie, node: int) -> list[int]:
    """From a child of the root down to `node`."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = trie.parents[node]
    return nodes[::-1]
