"""Models that think first, between <think> and </think>: what they thought, and what they say.

Blanks just inside the tags and after the closing one belong to neither text. A reply that ends
while thinking is all reasoning.
"""

from __future__ import annotations

from foreword.chat._scan import held

OPEN, CLOSE = "<think>", "</think>"
MARKERS = (OPEN, CLOSE)


def fits(template: str) -> bool:
    """Whether a chat template knows of thinking."""
    return CLOSE in template or OPEN in template


def opened_by(prompt: str) -> bool:
    """Whether the prompt ends inside a thought just begun, so that the reply goes on with it."""
    return prompt.rstrip().endswith(OPEN)


def closed_by(prompt: str) -> bool:
    """Whether the prompt ends behind a thought, so that the reply holds none."""
    return prompt.rstrip().endswith(CLOSE)


class ThinkParser:
    """One reply. `opened`: it begins inside a thought."""

    def __init__(self, opened: bool = False) -> None:
        self._state = "thinking" if opened else "start"  # start | thinking | behind | answer
        self._held = ""
        self._thought = False  # reasoning has been given out

    def push(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that became certain."""
        text = self._held + text
        self._held = ""
        reasoning = ""
        if self._state == "start":
            bare = text.lstrip()
            if OPEN.startswith(bare) and bare != OPEN:
                self._held = text
                return "", ""
            self._state = "thinking" if bare.startswith(OPEN) else "answer"
            text = bare.removeprefix(OPEN) if bare.startswith(OPEN) else text
        if self._state == "thinking":
            reasoning, text = self._think(text)
        if self._state == "behind":
            text = text.lstrip()
            if text:
                self._state = "answer"
        return reasoning, text

    def finish(self) -> tuple[str, str]:
        rest = self._held
        if self._state == "thinking":
            return rest.rstrip(), ""
        return "", rest

    def _think(self, text: str) -> tuple[str, str]:
        """(reasoning, what follows the closing tag). Holds back blanks and part of that tag."""
        if not self._thought:
            text = text.lstrip()
        place = text.find(CLOSE)
        if place >= 0:
            self._state = "behind"
            return text[:place].rstrip(), text[place + len(CLOSE) :]
        shown = text[: len(text) - held(text, (CLOSE,))].rstrip()
        self._held = text[len(shown) :]
        self._thought = self._thought or bool(shown)
        return shown, ""
