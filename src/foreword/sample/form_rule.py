"""The rule of a request whose text must have a form: ids that do not continue it may not come.

At each position the form says which ids may follow what was emitted; every other logit becomes
-inf. End tokens may come where the form may end, and nothing else where it cannot go on. When the
request ignores end tokens, they come only there, and again and again until max_tokens. Min_tokens,
bad words and the like forbid what they forbid: where nothing is left, the request ends with an
error.

Reads with a matcher of its own, one question and one answer per emitted token, so that limits
strike where they would in plain decoding. Nothing is compiled before the first token is wanted.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from foreword.errors import NoTokenAllowed, RequestError
from foreword.protocols import Logits
from foreword.sample.form_scout import FormScout
from foreword.text.form_spec import short
from foreword.text.forms import Form, Forms
from foreword.types import SamplingParams

Caps = npt.NDArray[np.float32]  # per id: +inf where it may come, else -inf

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_CAPS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))  # a byte of a mask -> 8 caps


def request_form(forms: Forms, params: SamplingParams, ends: Set[int]) -> RequestForm | None:
    """The compiled form that `params` ask for, if any. ends: the model's end tokens and stops that
    are special tokens. Stop ids that stand for text stop wherever the form lets them come.

    Raises RequestError for a form that cannot be used, and where no token could end it."""
    if params.structured_outputs is None:
        return None
    form = forms.compiled(params.structured_outputs)
    stops = {
        token for token in params.stop_token_ids or () if not form.vocabulary.is_ordinary(token)
    }
    if not ends | stops:
        raise RequestError(
            "structured_outputs need a token that ends the text, and this model names none; "
            "give one in stop_token_ids",
            "structured_outputs",
        )
    if params.ignore_eos and stops:
        return RequestForm(form, stops)
    return RequestForm(form, ends | stops, ignoring=params.ignore_eos)


class RequestForm:
    """Implements protocols.Grammar: a form and the end tokens of one request.

    ends: ids that end its text, none of them text. ignoring: they do not end it."""

    def __init__(self, form: Form, ends: Set[int], ignoring: bool = False) -> None:
        assert not ignoring or ends
        self.form = form
        self.ends = frozenset(ends)
        self.ignoring = ignoring

    def begin(self) -> FormRule:
        return FormRule(self.form, self.ends, self.ignoring)

    def scout(self) -> FormScout:
        return FormScout(self.form, self.ends)


class FormRule:
    """Implements protocols.Rule."""

    def __init__(self, form: Form, ends: frozenset[int], ignoring: bool) -> None:
        self._form, self._ends, self._ignoring = form, ends, ignoring
        self._end_ids = sorted(ends)
        self._matcher: LLMatcher | None = None
        self._emitted: list[int] = []
        self._ended = False  # an end token was emitted, and ignored
        self._fault = ""
        self._caps: Caps | None = None  # of this position, when it has been asked for
        self._last: tuple[bytes, bool] = (b"", False)  # mask and end of the caps computed last
        self._last_caps: Caps | None = None

    def apply(self, row: Logits, position: int) -> None:
        """Raises NoTokenAllowed where the form, or the rules before, leave nothing. A row of a
        later position (a drafter looks ahead) stays as it is."""
        if position != len(self._emitted):
            return
        if self._caps is None:
            self._caps = self._find()
        known = min(len(row), len(self._caps))  # a draft model may have fewer or more columns
        np.minimum(row[:known], self._caps[:known], out=row[:known])
        row[known:] = -np.inf
        if row.max() == -np.inf:
            raise self._stuck(
                "every token that continues the form is forbidden or unknown to the model; look at "
                "min_tokens, bad_words, allowed_token_ids and logits processors"
            )

    def advance(self, row: Logits, token: int) -> None:
        self._emitted.append(token)
        self._caps = None
        if token in self._ends:
            self._ended = True
        elif not self._ended and not self._fault and not self._read().consume_token(token):
            self._fault = f"token {token} does not continue it ({self._reason()})"

    def __deepcopy__(self, memo: object) -> FormRule:
        """The same place in the same text, sharing nothing."""
        rule = FormRule(self._form, self._ends, self._ignoring)
        for token in self._emitted:
            if not rule._ended:
                rule._find()
            rule.advance(np.empty(0, dtype=np.float32), token)
        return rule

    def _read(self) -> LLMatcher:
        if self._matcher is None:
            self._matcher = self._form.matcher()
        return self._matcher

    def _find(self) -> Caps:
        vocabulary = self._form.vocabulary
        if self._ended:
            return self._caps_of(bytes(len(vocabulary.ordinary)), True)
        if self._fault:
            raise self._stuck(self._fault)
        matcher = self._read()
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise self._stuck(self._reason())
        mask = mask & vocabulary.ordinary
        going_on, may_end = bool(mask.any()), matcher.is_accepting()
        if not going_on and not may_end:
            raise self._stuck("no token of this model continues the form")
        return self._caps_of(mask.tobytes(), may_end and not (self._ignoring and going_on))

    def _caps_of(self, mask: bytes, may_end: bool) -> Caps:
        """The same caps as the last ones when nothing has changed, as inside a string."""
        if self._last_caps is None or self._last != (mask, may_end):
            caps: Caps = np.take(_CAPS, np.frombuffer(mask, dtype=np.uint8), axis=0).reshape(-1)
            caps = caps[: self._form.vocabulary.num_ids]
            if may_end:
                caps[self._end_ids] = np.inf
            self._last, self._last_caps = (mask, may_end), caps
        return self._last_caps

    def _reason(self) -> str:
        return short(self._read().get_error()) or "it is complete"

    def _stuck(self, reason: str) -> NoTokenAllowed:
        return NoTokenAllowed(
            f"structured_outputs: {self._form.field} leaves no token at output position "
            f"{len(self._emitted)}: {reason}"
        )
