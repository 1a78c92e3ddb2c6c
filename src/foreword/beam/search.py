"""Beam search, one step for all beams (the procedure of Hugging Face Transformers 5).

All continuations of the running beams are ordered by (score descending, parent beam ascending,
token id ascending). Of the first `width` of them, those that end are complete outputs; the first
`width` that do not end are the running beams of the next step. Knows no model: it asks for
continuations.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from foreword.beam.beams import Beam, Candidate, Finished, Rules


class BeamSearch:
    """Implements beams.Search."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._running = [Beam()]
        self._finished: list[Finished] = []
        self.num_expansions = 0

    def wanted(self) -> list[Beam]:
        return self._running

    def give(self, found: SequenceOf[SequenceOf[Candidate]]) -> None:
        rules, self.num_expansions = self._rules, self.num_expansions + len(found)
        order = sorted(
            (-(beam.score + added), parent, token, added)
            for parent, (beam, ways) in enumerate(zip(self._running, found, strict=True))
            for token, added in ways
        )
        running: list[Beam] = []
        for rank, (_, parent, token, added) in enumerate(order):
            beam = self._running[parent].then(token, added)
            if rules.is_end(beam):
                if rank < rules.width:
                    self._finished.append(rules.finish(beam, rank))
            elif len(running) < rules.width:
                running.append(beam)
        self._running = running
        if running and self._may_stop():
            self._running = []

    def result(self) -> list[Finished]:
        return self._best()[: self._rules.returned]

    def _best(self) -> list[Finished]:
        return self._rules.best(self._finished)

    def _may_stop(self) -> bool:
        rules = self._rules
        if len(self._finished) < rules.width:
            return False
        if rules.early_stopping is True:
            return True
        longest = rules.early_stopping == "never" and rules.length_penalty > 0.0
        length = rules.max_tokens if longest else len(self._running[0].tokens)
        hoped = rules.normalised(self._running[0].score, length)
        return hoped <= self._best()[-1].normalised
