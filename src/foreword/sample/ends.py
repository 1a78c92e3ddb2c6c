"""`min_tokens`: no id that would end the text may come before so many tokens were emitted.

Those are the model's end tokens (unless `ignore_eos`), stops that are special tokens, and
`stop_token_ids`. Token number `min_tokens` + 1 (position `min_tokens`) may be one.
"""

from __future__ import annotations

from foreword.protocols import MASK, Edit
from foreword.sample.edits import EditRule, as_ids
from foreword.types import Request


class NoEndYet(EditRule):
    def __init__(self, min_tokens: int, ends: frozenset[int]) -> None:
        self._min_tokens = min_tokens
        self._edit = Edit(MASK, as_ids(ends))

    def edit(self, position: int) -> Edit | None:
        return self._edit if position < self._min_tokens else None


def end_ids(request: Request) -> frozenset[int]:
    """Every id that ends this request."""
    return request.eos_ids | frozenset(request.params.stop_token_ids or ())


def rules(request: Request) -> list[EditRule]:
    ends = end_ids(request)
    return [NoEndYet(request.params.min_tokens, ends)] if request.params.min_tokens and ends else []
