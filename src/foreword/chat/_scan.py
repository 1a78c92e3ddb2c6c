"""Reading text that arrives in pieces: brackets of a value, tags that are not complete yet."""

from __future__ import annotations

from collections.abc import Sequence


def held(text: str, tags: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of a tag."""
    longest = max(map(len, tags), default=1) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0


class Brackets:
    """Follows the brackets and strings of a value, in JSON's spelling or Python's.

    Cost: one look at each character. What is inside a string closes nothing.
    """

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._quote = ""  # the quote of the string we are in
        self._escaped = False
        self.depth = 0

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def feed(self, character: str) -> None:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == self._quote:
                self._quote = ""
        elif character in self._quotes:
            self._quote = character
        elif character in "{[(":
            self.depth += 1
        elif character in "}])":
            self.depth -= 1


class Plain:
    """The text around calls: shown as it comes, but for what may begin a tag, and blanks that may
    stand before one. Blanks next to a call are not text; a call between two texts ends a line."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tuple(tags)
        self._held = ""
        self.after_call = False  # blanks that come now follow a call
        self._any = False  # some text has been shown
        self.dropped = ""  # the blanks before the tag that was found last

    def push(self, text: str) -> tuple[str, str | None, str]:
        """(text to show, the tag that was found or None, what follows the tag)."""
        text = self._held + text
        if self.after_call:
            text = text.lstrip()
        found = [(place, tag) for tag in self._tags if (place := text.find(tag)) >= 0]
        if found:
            place, tag = min(found)
            self._held, before = "", text[:place]
            shown = before.rstrip()
            self.dropped = before[len(shown) :]
            return self._shown(shown), tag, text[place + len(tag) :]
        shown = text[: len(text) - held(text, self._tags)].rstrip()
        self._held = text[len(shown) :]
        return self._shown(shown), None, ""

    def finish(self) -> str:
        """The end of the text; blanks after a call are dropped."""
        rest, self._held = self._held, ""
        return "" if self.after_call and not rest.strip() else self._shown(rest)

    def give_back(self, text: str) -> str:
        """Show a tag that turned out to open no call."""
        return self._shown(text)

    def _shown(self, text: str) -> str:
        if not text:
            return ""
        between = "\n" if self.after_call and self._any else ""
        self.after_call, self._any = False, True
        return between + text
