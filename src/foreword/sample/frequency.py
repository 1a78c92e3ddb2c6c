"""`presence_penalty` and `frequency_penalty`, as OpenAI defines them: on output ids only.

    logit(v) -= frequency_penalty * (times v was emitted) + presence_penalty, if it was emitted

The right side is computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

from foreword.protocols import ADD, Edit, Logits
from foreword.sample.edits import EditRule, Growing
from foreword.types import Request


class Frequency(EditRule):
    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._counts: dict[int, int] = {}
        self._change = Growing()

    def edit(self, position: int) -> Edit | None:
        if not self._counts:
            return None
        return Edit(ADD, self._change.ids, self._change.values)

    def advance(self, row: Logits, token: int) -> None:
        count = self._counts[token] = self._counts.get(token, 0) + 1
        self._change.set(token, -(self._frequency * count + self._presence))


def rules(request: Request) -> list[EditRule]:
    presence, frequency = request.params.presence_penalty, request.params.frequency_penalty
    return [Frequency(presence, frequency)] if presence or frequency else []
