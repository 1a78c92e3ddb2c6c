"""`allowed_token_ids`: no other id may come, end tokens included."""

from __future__ import annotations

from foreword.protocols import ONLY, Edit
from foreword.sample.edits import EditRule, as_ids
from foreword.types import Request


class Allowed(EditRule):
    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._edit = Edit(ONLY, as_ids(tokens))

    def edit(self, position: int) -> Edit:
        return self._edit


def rules(request: Request) -> list[EditRule]:
    allowed = request.params.allowed_token_ids
    return [] if allowed is None else [Allowed(tuple(allowed))]
