"""`repetition_penalty`: ids of the prompt and of the output so far become less likely.

As in transformers (Keskar et al., "CTRL", 2019): a logit is divided by the penalty where positive,
else multiplied, once, however often the id occurred. In float32.
"""

from __future__ import annotations

from foreword.protocols import REPEAT, Edit, Logits
from foreword.sample.edits import EditRule, Growing
from foreword.types import Request


class Repetition(EditRule):
    def __init__(self, penalty: float, prompt_ids: tuple[int, ...]) -> None:
        self._penalty = penalty
        self._seen = Growing()
        for token in prompt_ids:
            self._seen.place(token)

    def edit(self, position: int) -> Edit:
        return Edit(REPEAT, self._seen.ids, factor=self._penalty)

    def advance(self, row: Logits, token: int) -> None:
        self._seen.place(token)


def rules(request: Request) -> list[EditRule]:
    penalty = request.params.repetition_penalty
    if penalty is None or penalty == 1.0:  # unset is off
        return []
    return [Repetition(penalty, request.prompt_ids)]
