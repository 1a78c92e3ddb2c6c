"""The rules that a request's parameters ask for, in the order they change its rows.

A file of this folder that holds a rule offers `rules(request) -> list[Rule]`; the order is here and
nowhere else: masks, bias, the user's own, penalties.
"""

from __future__ import annotations

from foreword.protocols import Rule
from foreword.types import Request


def rules_of(request: Request) -> tuple[Rule, ...]:
    """The rules of one request, each with its state before the first token."""
    rules: list[Rule] = []
    if request.grammar is not None:
        rules.append(request.grammar.begin())
    return tuple(rules)
