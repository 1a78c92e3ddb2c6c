"""User-supplied logits processors: called in order, once per emitted token, before anything else.

Each gets the ids so far (prompt and output, a list of its own) and a float32 copy of the row, and
returns the row to go on with. What goes wrong in one is a RequestError that names it: that request
ends, the others go on. The answers for a row are kept until the token is emitted, so whoever asks
again (log-probabilities, mirostat) does not call them again. Drafters never ask.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from foreword.errors import RequestError
from foreword.params import LogitsProcessor, processor_name
from foreword.sample.filters import Row
from foreword.types import Request

FIELD = "logits_processors"


class UserProcessors:
    def __init__(
        self, processors: SequenceOf[LogitsProcessor], prompt_ids: SequenceOf[int]
    ) -> None:
        self._processors = processors
        self._ids = list(prompt_ids)
        self._asked: tuple[int, Row, Row] | None = None  # position, row, answer

    def answer(self, row: Row, position: int) -> Row:
        """An own copy of what the processors make of float32 `row` [vocab]."""
        if self._asked is not None:
            before, known, answer = self._asked
            if before == position and np.array_equal(known, row):
                return answer.copy()
        result = row
        for processor in self._processors:
            result = self._call(processor, result, position)
        self._asked = position, row.copy(), result
        return result.copy()

    def advance(self, token: int) -> None:
        self._ids.append(token)
        self._asked = None

    def _call(self, processor: LogitsProcessor, row: Row, position: int) -> Row:
        where = f"logits processor {processor_name(processor)!r} at output position {position}"
        try:
            result = processor(list(self._ids), row.copy())
        except Exception as error:
            message = f"{where} raised {type(error).__name__}: {error}"
            raise RequestError(message, FIELD) from error
        if not isinstance(result, np.ndarray) or result.dtype.kind != "f":
            kind = result.dtype if isinstance(result, np.ndarray) else type(result).__name__
            raise RequestError(
                f"{where} returned {kind}; it must return a numpy array of floats", FIELD
            )
        if result.shape != row.shape:
            raise RequestError(
                f"{where} returned shape {result.shape}; it must keep {row.shape}", FIELD
            )
        with np.errstate(over="ignore", invalid="ignore"):
            changed = np.array(result, dtype=np.float32)  # its own: the callable may keep `result`
        peak = changed.max()
        if not np.isfinite(peak):
            what = "masked every id" if peak == -np.inf else "returned NaN or infinity"
            raise RequestError(f"{where} {what}; -inf masks an id, others must be finite", FIELD)
        return changed


def begin(request: Request) -> UserProcessors | None:
    processors = request.params.logits_processors
    return UserProcessors(processors, request.prompt_ids) if processors else None
