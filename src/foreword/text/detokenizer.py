"""Token ids to text, one at a time: the deltas of a stream.

The text of a completion is read after its prompt: a leading space belongs to it unless nothing
visible came before, and a character begun in the prompt is finished by it. A delta never ends
inside a character, what was given out never changes, and the deltas of any completion join to the
one-shot text, because both are the UTF-8 reading of the same bytes. Cost per token: its length.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence, Set

from foreword.text.tokenizer import Tokenizer

_LONGEST_CHARACTER = 4  # bytes of UTF-8


class Detokenizer:
    """Holds back at most the first three bytes of an unfinished character."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        shown: Set[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._shown = shown  # special tokens that are not skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        tail = self._last_bytes(prompt_ids)
        self._at_start = tokenizer.strips_leading_space and not tail
        self._utf8.decode(tail)  # leaves an unfinished character of the prompt pending

    def push(self, token: int) -> str:
        """The text that became certain with this token; "" inside a character."""
        data = self._bytes(token)
        if self._at_start and data:
            self._at_start = False
            data = data.removeprefix(b" ")
        return self._utf8.decode(data)

    def finish(self) -> str:
        """What is still held back: one U+FFFD for a character cut in the middle, or ""."""
        return self._utf8.decode(b"", final=True)

    def _bytes(self, token: int) -> bytes:
        skip = self._skip and token not in self._shown
        return self._tokenizer.visible_bytes(token, skip)

    def _last_bytes(self, prompt_ids: Sequence[int]) -> bytes:
        tail = b""
        for token in reversed(prompt_ids):
            tail = self._bytes(token) + tail
            if len(tail) >= _LONGEST_CHARACTER:
                break
        return tail


def decode_completion(
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    ids: Iterable[int],
    skip_special_tokens: bool = True,
) -> str:
    """The one-shot text of completion `ids` in the context of `prompt_ids`."""
    reader = Detokenizer(tokenizer, prompt_ids, skip_special_tokens)
    return "".join([*(reader.push(token) for token in ids), reader.finish()])
