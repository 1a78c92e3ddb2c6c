"""Forms that texts must have, compiled by llguidance and kept for the next request.

What bounds a form: bytes and levels of what is asked (form_spec.py), symbols of the compiled
grammar, fuel of the regex compiler, and for each step the items and fuel that finding the next mask
may cost. All are counts, so that a form fails at the same token wherever it runs.

Every request reads with a matcher of its own, made from scratch: copies of one matcher share the
states that their lexer has found so far, and with them their limits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Set
from threading import Lock

import numpy as np
from llguidance import LLMatcher, LLParserLimits, __version__

from foreword.errors import RequestError
from foreword.params import StructuredOutput
from foreword.text.form_spec import field_of, parameter, refused, short, without_blanks, written
from foreword.text.form_vocabulary import FormVocabulary
from foreword.text.tokenizer import Tokenizer

FORM_COMPILER = f"llguidance {__version__}"  # what a form's masks depend on beside its text
MAX_SYMBOLS = 10_000  # of a compiled grammar; half a second at the very worst
MAX_STATES = 50_000  # of one request's lexer, about 1.5 kB each
SCOUT_STATES = 20_000  # of the lexer that all scouts of a form share
MAX_FORMS = 64
MAX_KEPT_BYTES = 2 * 1024 * 1024  # of the texts of all forms that are kept


def limits(states: int) -> LLParserLimits:
    return LLParserLimits(
        max_items_in_row=2_000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=states,
        max_grammar_size=MAX_SYMBOLS,
        verbose_errors=False,
    )


class Form:
    """One compiled form. Raises RequestError naming the field of `asked`."""

    def __init__(self, asked: StructuredOutput, vocabulary: FormVocabulary) -> None:
        self.field = field_of(asked)
        self.vocabulary = vocabulary
        self.text = written(asked)
        self._hints = SharedMatcher(vocabulary, self.text)
        self._check()
        compact = without_blanks(asked)
        self._compact = None if compact is None else SharedMatcher(vocabulary, compact)

    def matcher(self) -> LLMatcher:
        """A reader at the start of a text, for one request alone."""
        return made(self.vocabulary, self.text, MAX_STATES)

    def shared_matcher(self) -> LLMatcher:
        """A reader for hints."""
        return self._hints.copy()

    def compact_matcher(self) -> LLMatcher | None:
        """A reader, for hints, of the text of a JSON form without its blanks."""
        return None if self._compact is None else self._compact.copy()

    def _check(self) -> None:
        matcher = self._hints.copy()
        if matcher.is_error():
            raise refused(self.field, f"cannot be compiled: {short(matcher.get_error())}")
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if not (mask & self.vocabulary.ordinary).any():
            raise RequestError(
                f"structured_outputs: {self.field} has no beginning that this model can write; "
                "a form must allow at least one token of text",
                parameter(self.field),
            )


class SharedMatcher:
    """Copies share what they have found out: cheap, but one that runs into a limit takes the others
    with it. For hints."""

    def __init__(self, vocabulary: FormVocabulary, text: str) -> None:
        self._given = vocabulary, text, SCOUT_STATES
        self._first = made(*self._given)

    def copy(self) -> LLMatcher:
        """At the start of a text; from scratch when the last ones met a limit."""
        tried = self._first.deep_copy()
        tried.compute_bitmask()
        if tried.is_error():
            self._first = made(*self._given)
        return self._first.deep_copy()


def made(vocabulary: FormVocabulary, text: str, states: int) -> LLMatcher:
    return LLMatcher(vocabulary.table, text, log_level=0, limits=limits(states))


class Forms:
    """The forms of one model. The vocabulary is prepared when the first is asked for."""

    def __init__(self, tokenizer: Tokenizer, num_ids: int, ends: Set[int]) -> None:
        self._vocabulary: FormVocabulary | None = None
        self._known: OrderedDict[StructuredOutput, Form] = OrderedDict()
        self._lock = Lock()
        self._given = tokenizer, num_ids, ends

    def compiled(self, asked: StructuredOutput) -> Form:
        """Raises RequestError for a form that is malformed, too large or cannot begin."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = FormVocabulary(*self._given)
            form = self._known.get(asked)
            if form is None:
                form = self._known[asked] = Form(asked, self._vocabulary)
            self._known.move_to_end(asked)
            while len(self._known) > 1 and (
                len(self._known) > MAX_FORMS
                or sum(len(one.text) for one in self._known.values()) > MAX_KEPT_BYTES
            ):
                self._known.popitem(last=False)
        return form
