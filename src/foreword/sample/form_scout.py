"""Looks ahead in a form, for drafts: which guesses it forbids, and which tokens it forces.

Follows the emitted text with a matcher beside the rule's, one that shares its lexer with the other
scouts of the form: what is found out for one request is known for the next. A scout that runs into
a limit has no opinion any more; the rule's own limits are not touched by it.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from llguidance import LLMatcher

from foreword.sample.form_layout import JsonLayout
from foreword.text.forms import Form


class FormScout:
    """Implements protocols.Scout. `ends`: ids that end the text."""

    def __init__(self, form: Form, ends: frozenset[int]) -> None:
        self.num_read = 0
        self._vocabulary = form.vocabulary
        self._ends = ends
        self._matcher: LLMatcher = form.shared_matcher()
        self._over = False  # an end token was emitted, or a limit was met
        compact = form.compact_matcher()
        self._layout = None if compact is None else JsonLayout(compact, form.vocabulary)

    def follow(self, tokens: SequenceOf[int]) -> None:
        self.num_read += len(tokens)
        for token in tokens:
            self._over = self._over or token in self._ends
            if not self._over:
                self._over = not self._matcher.consume_token(token)
        if self._layout is not None and not self._over:
            self._layout.follow(tokens)

    def legal(self, path: SequenceOf[int]) -> int:
        """All of it, when there is no opinion."""
        if self._over:
            return len(path)
        end = self._vocabulary.end_id
        asked: list[int] = []
        for token in path:
            asked.append(end if token in self._ends else token)
            if not (asked[-1] == end or self._vocabulary.is_ordinary(token)):
                asked.pop()
                break
            if asked[-1] == end:  # nothing follows it
                break
        if asked == [end]:
            return int(self._matcher.is_accepting())
        return self._matcher.validate_tokens(asked)

    def forced(self, path: SequenceOf[int]) -> list[int]:
        matcher = self._matcher
        if self._over or matcher.is_stopped() or self._ends.intersection(path):
            return []
        if path and not matcher.consume_tokens(list(path)):
            self._over = True
            return []
        found = matcher.compute_ff_tokens()
        if path and not matcher.rollback(len(path)):
            self._over = True
        ordinary = self._vocabulary.is_ordinary
        wrong = next((at for at, token in enumerate(found) if not ordinary(token)), len(found))
        return found[:wrong]

    def likely(self, path: SequenceOf[int]) -> tuple[list[int], list[float]]:
        if self._layout is None or self._over or self._ends.intersection(path):
            return [], []
        tokens, chances = self._layout.likely(path)
        count = max(0, self._matcher.validate_tokens([*path, *tokens]) - len(path))
        return tokens[:count], chances[:count]
