"""The text of one running request: detokenizer and stop strings joined. `push` is `Request.watch`.

Holds no reference to the engine: the engine tells it each emitted token, once, in order; a reader
takes what may be shown.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from foreword.text.detokenizer import Detokenizer
from foreword.text.stops import StopWatch
from foreword.text.tokenizer import Tokenizer


class TextStream:
    """`stops`: text stops only; `split_stops` separates those that are special tokens. `shown`:
    special tokens that are text all the same."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stops: Sequence[str] = (),
        skip_special_tokens: bool = True,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens, shown)
        self._watch = StopWatch(stops)
        self._parts: list[str] = []
        self._taken = 0  # parts already given to the reader
        self._finished = False

    @property
    def text(self) -> str:
        """All text that may be shown so far; final after `finish`."""
        return "".join(self._parts)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._watch.stop

    def push(self, token: int) -> bool:
        """Add an emitted token; True when a stop string is complete."""
        assert not self._finished, "push after finish"
        self._keep(self._watch.push(self._detokenizer.push(token)))
        return self.stop is not None

    def finish(self) -> None:
        """No token follows: release an unfinished character (U+FFFD) and withheld text."""
        if not self._finished:
            self._finished = True
            self._keep(self._watch.push(self._detokenizer.finish()))
            self._keep(self._watch.flush())

    def take(self) -> str:
        """Text that became showable since the last take."""
        taken = "".join(self._parts[self._taken :])
        self._taken = len(self._parts)
        return taken

    def _keep(self, text: str) -> None:
        if text:
            self._parts.append(text)
