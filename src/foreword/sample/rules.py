"""The rules that a request's parameters ask for, in the order they change its rows.

A file of this folder that holds a rule offers `rules(request) -> list[EditRule]`; the order is here
and nowhere else: the grammar, bias, penalties, masks. (User-supplied processors come before all of
them, see user.py; what they return is masked like any other row.) docs/parameters.md is for users.
"""

from __future__ import annotations

from foreword.protocols import Rule
from foreword.sample import allowed, bad_words, bias, dry, ends, frequency, repetition
from foreword.types import Request

ORDER = (bias, repetition, frequency, dry, ends, bad_words, allowed)


def rules_of(request: Request) -> tuple[Rule, ...]:
    """The rules of one request, each with its state before the first token. Rules that are no
    EditRule come first: a compiled chain does them in Python."""
    rules: list[Rule] = []
    if request.grammar is not None:
        rules.append(request.grammar.begin())
    for module in ORDER:
        rules += module.rules(request)
    return tuple(rules)
