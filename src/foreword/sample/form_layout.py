"""Guesses how a JSON text goes on where only its blanks are free: names, quotes, braces, in the
layout that the text has shown so far.

A schema forces most of a JSON text, but not whether a space or a line break comes before the next
name, so hardly a token is forced. Here a second matcher reads the same text without its blanks;
what that one forces is certain up to blanks, and those are put back in as they came before: after
the same character, indented by the depth. A guess is spelled by the tokenizer and drafted with the
share of such guesses that came true in this text. Knows no rule and no mask: it may be wrong.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace

from llguidance import LLMatcher

from foreword.text.form_vocabulary import FormVocabulary

QUOTE, ESCAPE, BLANKS = ord('"'), ord("\\"), b" \n"
OPENING, CLOSING, NO_BLANK = b"{[", b"}]", b",:"  # before the last, hardly anyone puts a blank
CHANCES = (0.55, 0.97)  # of a guess's first token (which blanks?), and of one after a right one:
# measured with SmolLM2, 12 prompts of bench/data/json_prompts.jsonl, 157 and 331 tokens
WEIGHT = 10.0  # how many tokens that counts as


@dataclass(slots=True)
class _Place:
    """Where in the text: what a reader of bytes must remember."""

    depth: int = 0
    inside: bool = False  # a string
    escaped: bool = False
    last: int = 0  # the last byte that is no blank outside a string
    blanks: bytes = b""  # since then

    def move(self, byte: int) -> None:
        """Over one byte."""
        if not self.inside and byte in BLANKS:
            self.blanks += bytes((byte,))
            return
        if self.inside:
            self.inside = self.escaped or byte != QUOTE
            self.escaped = byte == ESCAPE and not self.escaped
        elif byte == QUOTE:
            self.inside = True
        self.depth += (byte in OPENING) - (byte in CLOSING) if not self.inside else 0
        self.last, self.blanks = byte, b""


@dataclass(slots=True)
class JsonLayout:
    """One text of a JSON form. `matcher` reads it without blanks."""

    matcher: LLMatcher
    vocabulary: FormVocabulary
    lost: bool = False  # the text is not what the matcher expects, blanks aside
    _place: _Place = field(default_factory=_Place)
    _after: dict[int, bytes | int] = field(default_factory=dict)  # see `_note`
    _guess: list[int] = field(default_factory=list)
    _right: list[float] = field(default_factory=lambda: [chance * WEIGHT for chance in CHANCES])
    _made: list[float] = field(default_factory=lambda: [WEIGHT, WEIGHT])

    def follow(self, tokens: SequenceOf[int]) -> None:
        """The next tokens that were emitted."""
        for place, (guessed, token) in enumerate(zip(self._guess, tokens, strict=False)):
            kind = min(place, 1)
            self._made[kind] += 1.0
            if guessed != token:
                break
            self._right[kind] += 1.0
        self._guess = []
        if not self.lost:
            self._read(tokens, noting=True)

    def likely(self, path: SequenceOf[int]) -> tuple[list[int], list[float]]:
        """The tokens that probably follow after `path`, and the chance of each, given the one
        before it."""
        if self.lost:
            return [], []
        place = self._place
        self._place = replace(place)
        count = self._read(path, noting=False)
        woven = b"" if self.lost else self._woven(self.matcher.compute_ff_bytes())
        self._place = place
        self.lost = False  # a guess that does not fit says nothing of the text
        if count and not self.matcher.rollback(count):
            self.lost = True
        try:
            tokens = self.vocabulary.spelled(woven.decode("utf-8")) if woven else []
        except UnicodeDecodeError:  # what is forced ends inside a character
            tokens = []
        if not path:
            self._guess = tokens
        first, later = (r / m for r, m in zip(self._right, self._made, strict=True))
        return tokens, [first, *[later] * (len(tokens) - 1)][: len(tokens)]

    def _read(self, tokens: SequenceOf[int], noting: bool) -> int:
        """Feed the bytes of tokens; returns how many the matcher has taken."""
        place, count = self._place, 0
        for byte in b"".join(self.vocabulary.tokens[one] for one in tokens):
            if place.inside or byte not in BLANKS:
                if noting and not place.inside:
                    self._note(byte)
                token = self.vocabulary.byte_ids[byte]
                if token < 0 or not self.matcher.consume_token(token):
                    self.lost = True
                    break
                count += 1
            place.move(byte)
        return count

    def _note(self, byte: int) -> None:
        """What came between two characters: the blanks as they are, or of a line break, how far a
        level is indented."""
        place = self._place
        if byte in NO_BLANK or not place.last:
            return
        depth = place.depth - (byte in CLOSING)
        if not place.blanks.startswith(b"\n"):
            self._after[place.last] = place.blanks
        elif depth:
            self._after[place.last] = (len(place.blanks) - 1) // depth

    def _woven(self, forced: bytes) -> bytes:
        """The forced bytes with blanks between them."""
        place, woven = replace(self._place), b""
        for byte in forced:
            if not place.inside and place.last:
                blanks = self._expected(place, byte)
                if not blanks.startswith(place.blanks):  # they came otherwise this time
                    return woven
                woven += blanks[len(place.blanks) :]
            woven += bytes((byte,))
            place.move(byte)
        return woven

    def _expected(self, place: _Place, byte: int) -> bytes:
        if byte in NO_BLANK:
            return b""
        known = self._after.get(place.last)
        if known is None and place.last == ord(","):
            known = self._after.get(ord("{"), b" ")  # in lines, as after the brace, or on one
            known = b" " if known == b"" else known
        elif known is None and byte in CLOSING:
            known = self._after.get(ord("{"), b"")
        elif known is None:
            known = b" " if place.last == ord(":") else b""
        if isinstance(known, bytes):
            return known
        return b"\n" + b" " * (known * (place.depth - (byte in CLOSING)))
