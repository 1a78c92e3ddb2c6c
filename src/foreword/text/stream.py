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
    """`stops`: text stops only; `split_stops` separates those that are special tokens. `end_ids`
    end the request; like stop strings they are part of the text if `include_stop` says so. A stop
    string that is complete with one of the first `min_tokens` tokens ends nothing. `shown`: special
    tokens that are text all the same."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        stops: Sequence[str] = (),
        skip_special_tokens: bool = True,
        *,
        include_stop: bool = False,
        end_ids: Set[int] = frozenset(),
        min_tokens: int = 0,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt_ids, skip_special_tokens, shown)
        self._watch = StopWatch(stops, include_stop)
        self._hidden: Set[int] = frozenset() if include_stop else end_ids
        self._min_tokens = min_tokens
        self._starts: list[int] = []
        self._length = 0  # characters that the tokens so far have made certain
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

    def offsets(self, first: int = 0) -> list[int]:
        """Per token from `first` on: where its text begins, in characters of `text`; of a token
        that begins inside a character, that character's place. Never falls, never leaves the
        text."""
        end = self._watch.end
        return [min(start, end) for start in self._starts[first:]]

    def push(self, token: int) -> bool:
        """Add an emitted token; True when a stop string is complete."""
        assert not self._finished, "push after finish"
        self._starts.append(self._length)
        delta = "" if token in self._hidden else self._detokenizer.push(token)
        self._length += len(delta)
        self._keep(self._watch.push(delta, armed=len(self._starts) > self._min_tokens))
        return self.stop is not None

    def finish(self) -> None:
        """No token follows: release an unfinished character (U+FFFD) and withheld text."""
        if not self._finished:
            self._finished = True
            self._keep(self._watch.push(self._detokenizer.finish(), armed=False))  # no token ends
            self._keep(self._watch.flush())

    def take(self) -> str:
        """Text that became showable since the last take."""
        taken = "".join(self._parts[self._taken :])
        self._taken = len(self._parts)
        return taken

    def _keep(self, text: str) -> None:
        if text:
            self._parts.append(text)


def read_prompt(
    tokenizer: Tokenizer, prompt_ids: Sequence[int], skip_special_tokens: bool = True
) -> tuple[str, list[int]]:
    """The prompt's text as a completion goes on from it, and where each token's begins. A character
    that the prompt leaves unfinished is in the completion's text, not here."""
    reader = Detokenizer(tokenizer, (), skip_special_tokens)
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    for token in prompt_ids:
        starts.append(length)
        parts.append(reader.push(token))
        length += len(parts[-1])
    return "".join(parts), starts
