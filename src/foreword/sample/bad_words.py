"""`bad_words`: sequences of ids that may not come (`Request.bad_words`, made by the door).

Where the output ends with all but the last id of such a sequence, that last id is masked; a
sequence of one id never comes. As in vLLM the prompt does not count.
"""

from __future__ import annotations

from foreword.protocols import MASK, Edit, Logits
from foreword.sample.edits import EditRule, as_ids
from foreword.types import Request


class BadWords(EditRule):
    def __init__(self, words: tuple[tuple[int, ...], ...]) -> None:
        self._always = frozenset(word[0] for word in words if len(word) == 1)
        self._longer = [(word[:-1], word[-1]) for word in words if len(word) > 1]
        self._memory = max((len(start) for start, _ in self._longer), default=0)
        self._output: list[int] = []  # its last tokens, as many as the longest word needs
        self._edit = self._make()

    def edit(self, position: int) -> Edit | None:
        return self._edit

    def advance(self, row: Logits, token: int) -> None:
        if self._longer:
            self._output = [*self._output, token][-self._memory :]
            self._edit = self._make()

    def _make(self) -> Edit | None:
        masked = set(self._always)
        for start, last in self._longer:
            if tuple(self._output[-len(start) :]) == start:
                masked.add(last)
        return Edit(MASK, as_ids(masked)) if masked else None


def rules(request: Request) -> list[EditRule]:
    return [BadWords(request.bad_words)] if request.bad_words else []
