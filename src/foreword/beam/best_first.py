"""Best-first beam search: the outputs of an exhaustive beam search, from fewer expansions.

Idea: Meister, Vieira, Cotterell, "Best-first beam search" (TACL 2020, arXiv 2007.03909). Scores
only fall as a beam grows. So the best of all open beams, whatever their lengths, may be taken next,
and the beams of one length are taken in the very order in which beam search would rank them: the
i-th taken has rank i, the first `width` that do not end are its running beams, the rest is never
looked at again. Of equal scores the shorter is taken first, then as in search.py.

The search is over when the outputs wanted are complete and no open beam can still beat the worst of
them: the outputs of BeamSearch with early_stopping "never", and at length_penalty 0, ties aside,
from a part of the rows it reads. One row a pass, though: for where a row costs about as much as a
pass. (The paper keeps complete beams in the beam; here they leave it, as in search.py.)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence as SequenceOf

from foreword.beam.beams import Beam, Candidate, Finished, Rules

# (-score, length, parent's place among the running beams of its length, token, parent, added)
Entry = tuple[float, int, int, int, Beam, float]


class BestFirst:
    """Implements beams.Search, for candidates that add nothing above 0."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: list[Entry] = []  # a heap; the first four fields never tie
        self._taken: Counter[int] = Counter()  # length -> candidates ranked
        self._running: Counter[int] = Counter()  # length -> of these, beams that went on
        self._finished: list[Finished] = []
        self._next: list[Beam] = [Beam()]
        self._place = 0  # of that beam among the running ones of its length
        self.num_expansions = 0

    def wanted(self) -> list[Beam]:
        return self._next

    def give(self, found: SequenceOf[SequenceOf[Candidate]]) -> None:
        self.num_expansions += 1
        (beam,), (ways,) = self._next, found
        for token, added in ways:
            assert added <= 0.0, "a score has risen"
            key = -(beam.score + added), len(beam.tokens) + 1, self._place, token
            heapq.heappush(self._open, (*key, beam, added))
        self._next = self._take()

    def result(self) -> list[Finished]:
        return self._rules.best(self._finished)[: self._rules.returned]

    def _take(self) -> list[Beam]:
        """Rank open beams until one goes on; none when the search is over."""
        rules = self._rules
        while self._open and not self._settled():
            _, length, _, token, parent, added = heapq.heappop(self._open)
            if self._running[length] == rules.width:
                continue
            beam, rank = parent.then(token, added), self._taken[length]
            self._taken[length] += 1
            if not rules.is_end(beam):
                self._place = self._running[length]
                self._running[length] += 1
                return [beam]
            if rank < rules.width:
                self._finished.append(rules.finish(beam, rank))
        return []

    def _settled(self) -> bool:
        """Whether nothing open can come before the worst output wanted. Among sums a tie cannot: it
        would have been taken by now, or is longer. Divided ones may round to one value."""
        rules = self._rules
        if len(self._finished) < (rules.returned or rules.width):
            return False
        long = rules.length_penalty > 0.0
        length = rules.max_tokens if long else min(entry[1] for entry in self._open)
        hoped = rules.normalised(-self._open[0][0], length)
        worst = self.result()[-1].normalised
        return hoped < worst or (hoped == worst and rules.length_penalty == 0.0)
