"""Stop strings in a stream of text: where the text ends, and what may be given out before that.

The text ends before the stop string that is complete first, reading one character after another; of
several complete at the same character the longest counts. That does not depend on how the text was
cut into deltas. A stop string often ends inside a token: the text is cut at the character, the ids
are kept whole. Included, the stop string is the last of the text, and nothing follows it, not even
the rest of its token. Knows no tokens, except in `split_stops`.
"""

from __future__ import annotations

from collections.abc import Sequence

from foreword.text.checks import check_text
from foreword.text.tokenizer import Tokenizer


class StopWatch:
    """One Knuth-Morris-Pratt matcher per stop string; withholds only what may still become a stop.

    include: the stop string is part of the text, so nothing is withheld.
    `stop`: the stop string found, or None. `end`: characters of the text, as far as it is known.
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        for stop in stops:
            assert stop, "SamplingParams refuses empty stop strings"
        self._stops = tuple(stops)
        self._include = include
        self._borders = [_borders(stop) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop matched at the end of the text
        self._held = ""  # the end of the text, not given out
        self._released = 0
        self.stop: str | None = None

    @property
    def end(self) -> int:
        return self._released + len(self._held)

    def push(self, delta: str, armed: bool = True) -> str:
        """Text that may be given out now. After a stop string is complete: nothing more. Not armed:
        one that is complete within `delta` is passed over."""
        if self.stop is not None:
            return ""
        if not self._stops:
            self._released += len(delta)
            return delta
        text = self._held + delta
        for index, character in enumerate(delta, start=len(self._held)):
            found = self._advance(character)
            if found and armed:
                self.stop = found
                return self._release(text[: index + 1 - (0 if self._include else len(found))], 0)
        return self._release(text, 0 if self._include else max(self._matched))

    def flush(self) -> str:
        """The text is over: give out what was withheld."""
        return self._release(self._held, 0) if self.stop is None else ""

    def _release(self, text: str, keep: int) -> str:
        released = text[: len(text) - keep]
        self._held = text[len(text) - keep :]
        self._released += len(released)
        return released

    def _advance(self, character: str) -> str:
        """Feed one character; the longest stop complete with it, or ""."""
        found = ""
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            while matched and stop[matched] != character:
                matched = self._borders[which][matched - 1]
            matched += stop[matched] == character
            self._matched[which] = matched
            if matched == len(stop):
                self._matched[which] = self._borders[which][-1]
                found = max(found, stop, key=len)
        return found


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is a suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        length += text[index] == text[length]
        borders[index] = length
    return borders


def split_stops(
    tokenizer: Tokenizer, stops: Sequence[str]
) -> tuple[tuple[str, ...], frozenset[int]]:
    """Stops to look for in the text, and ids to stop at.

    A stop that is exactly a special token's text never shows in a text that skips specials; it is
    watched for as an id. Raises RequestError for an unpaired surrogate.
    """
    for stop in stops:
        check_text(stop, "stop")
    ids = {stop: tokenizer.raw.token_to_id(stop) for stop in stops}
    special = {stop for stop, token in ids.items() if token in tokenizer.special_ids}
    texts = tuple(stop for stop in stops if stop not in special)
    return texts, frozenset(
        token for stop, token in ids.items() if stop in special and token is not None
    )
