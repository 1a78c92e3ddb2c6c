"""One trie of what several sources guess: equal nodes become one, and their chances are combined.

    source by source   score -> chance, calibrated for that source (_calibration.py)
    agreeing sources   the surest one's chance: most look at the same text, so they are not added up
    siblings           scaled down where together they are surer than anything can be
    the result         calibrated once more, by how many agree and by place among siblings: there
                       agreement earns what it turns out to be worth
    the chosen         and again by what verified nodes came to, over all requests and in this one:
                       what is chosen for a number has less of it than the number says

`Merged` keeps what was said of every node until the target's answer is known: then each child of a
node on the emitted text is an observation, right or wrong, verified or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from foreword.draft._calibration import Calibration, Cell, Trust
from foreword.types import DraftTree, Trie

MIX = "mix"  # the name under which combined chances are calibrated
CHOSEN = "chosen"  # and those of verified nodes
SURE = 0.98  # siblings together are at most that sure before the last calibration
AGREEING, PLACES = 3, 4  # more count as these

Vote = tuple[str, float, float, Cell]  # source, score, chance, cell


@dataclass(slots=True)
class Merged:
    """Nodes in topological order; parents[i] is -1 or an index < i."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    votes: list[list[Vote]] = field(default_factory=list)
    owners: list[list[str]] = field(default_factory=list)  # who proposed a node, vote by vote
    mixed: list[float] = field(default_factory=list)  # combined chance
    said: list[float] = field(default_factory=list)  # calibrated
    cells: list[Cell] = field(default_factory=list)  # where that one is learned
    chances: list[float] = field(default_factory=list)  # as of a verified node
    chosen: list[Cell] = field(default_factory=list)
    children: dict[int, list[int]] = field(default_factory=dict)
    index: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> node

    def add(
        self, trie: Trie, owner: str, kind: int, calibration: Calibration, trust: Trust
    ) -> None:
        """Enter the guesses of one drafter; where it is a composite its nodes say whose they are,
        which is what calibration goes by, and `owner` gets the credit."""
        moved: list[int] = []
        nodes = zip(
            trie.parents, trie.tokens, trie.scores, trie.sources, trie.evidence, strict=True
        )
        for parent, token, score, source, evidence in nodes:
            above = moved[parent] if parent >= 0 else -1
            node = self.index.get((above, token))
            if node is None:
                node = self.index[above, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.depths.append(self.depths[above] + 1 if above >= 0 else 1)
                self.votes.append([])
                self.owners.append([])
                siblings = self.children.get(above)
                if siblings is None:
                    self.children[above] = [node]
                else:
                    siblings.append(node)
            moved.append(node)
            chance, cell = calibration.chance(
                source, kind, self.depths[node], evidence, score, trust.get(source, 1.0)
            )
            self.votes[node].append((source, score, chance, cell))
            self.owners[node].append(owner)

    def combine(self, kind: int, calibration: Calibration, trust: Trust) -> None:
        """Fill `mixed` and all below it once every source has been entered."""
        size = len(self.tokens)
        self.mixed = [max(votes, key=_chance_of)[2] for votes in self.votes]
        self.said, self.chances = [0.0] * size, [0.0] * size
        self.cells, self.chosen = [()] * size, [()] * size
        mixed = self.mixed
        for siblings in self.children.values():
            if len(siblings) > 1:
                total = sum(mixed[node] for node in siblings)
                if total > SURE:
                    for node in siblings:
                        mixed[node] *= SURE / total
                siblings.sort(key=lambda node: -mixed[node])
            for place, node in enumerate(siblings):
                agreeing = min(len(self.votes[node]), AGREEING)
                self.said[node], self.cells[node] = calibration.chance(
                    MIX, 2 * agreeing + kind, self.depths[node], min(place, PLACES), mixed[node]
                )
                self.chances[node], self.chosen[node] = calibration.chance(
                    CHOSEN, kind, self.depths[node], 0, self.said[node], trust.get(CHOSEN, 1.0)
                )

    def best(self, budget: int) -> Trie:
        """The `budget` nodes of highest reach, under the name of their surest source."""
        reach: list[float] = []
        for parent, chance in zip(self.parents, self.chances, strict=True):
            reach.append(chance * reach[parent] if parent >= 0 else chance)
        kept: Iterable[int] = range(len(reach))
        if len(reach) > budget:
            kept = sorted(sorted(kept, key=lambda node: (-reach[node], node))[:budget])
        trie, moved = Trie(), {-1: -1}
        for node in kept:
            votes = self.votes[node]
            source = votes[0][0] if len(votes) == 1 else max(votes, key=_chance_of)[0]
            moved[node] = trie.add(
                moved[self.parents[node]], self.tokens[node], self.chances[node], source
            )
        return trie

    def learn(
        self, emitted: SequenceOf[int], tree: DraftTree, calibration: Calibration, trust: Trust
    ) -> None:
        """The target emitted these tokens: every child along them was right or wrong. `tree` is
        what was verified."""
        node: int | None = -1
        place: int | None = 0
        for token in emitted:
            children = self.children.get(node, ()) if node is not None else ()
            for child in children:
                right = self.tokens[child] == token
                for source, score, chance, cell in self.votes[child]:
                    calibration.learn(cell, score, chance, right)
                    calibration.adapt(trust, source, chance, right)
                calibration.learn(self.cells[child], self.mixed[child], self.said[child], right)
                if place is not None and tree.child(place, self.tokens[child]) is not None:
                    calibration.learn(
                        self.chosen[child], self.said[child], self.chances[child], right
                    )
                    calibration.adapt(trust, CHOSEN, self.chances[child], right)
            if not children:
                return
            assert node is not None
            node = self.index.get((node, token))
            place = None if place is None else tree.child(place, token)

    def credit(self, emitted: SequenceOf[int]) -> dict[str, float]:
        """Of the emitted tokens that were guessed: how many each drafter guessed, in equal shares
        where several did."""
        shares: dict[str, float] = {}
        node = -1
        for token in emitted:
            if (node, token) not in self.index:
                break
            node = self.index[node, token]
            owners = self.owners[node]
            for owner in owners:
                shares[owner] = shares.get(owner, 0.0) + 1.0 / len(owners)
        return shares


def _chance_of(vote: Vote) -> float:
    return vote[2]
