"""What bytes a vocabulary entry stands for, read off the tokenizer's decoder.

Two spellings exist in the models Foreword runs: byte-level BPE (every byte has a printable
stand-in, "Ġ" for the space) and SentencePiece ("▁" for the space, "<0x0A>" for a byte). Byte pieces
are read as UTF-8 with their neighbours, so a broken run of them keeps its good characters.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from foreword.errors import ConfigError


def byte_alphabet() -> dict[str, int]:
    """The 256 printable stand-ins of byte-level BPE: character -> byte.

    Printable Latin-1 bytes stand for themselves; the others take U+0100 upwards, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(rest)})
    return alphabet


_BYTE_OF = byte_alphabet()
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class ByteRule:
    """How one tokenizer spells bytes. `replacements` are (from, to) texts, applied in order."""

    byte_level: bool = False
    byte_fallback: bool = False
    strip_leading_space: bool = False
    replacements: list[tuple[str, str]] = field(default_factory=list)

    @staticmethod
    def from_decoder(decoder: Any) -> ByteRule:
        """Read a `tokenizers` decoder. Raises ConfigError for a kind without token bytes."""
        steps = [] if decoder is None else _steps(json.loads(decoder.__getstate__()))
        rule: dict[str, Any] = {"replacements": []}
        for step in steps:
            kind = step["type"]
            if kind == "ByteLevel":
                rule["byte_level"] = True
            elif kind == "ByteFallback":
                rule["byte_fallback"] = True
            elif kind == "Metaspace":
                rule["replacements"].append((step["replacement"], " "))
                rule["strip_leading_space"] = step.get("prepend_scheme", "always") != "never"
            elif kind == "Replace" and "String" in step["pattern"]:
                rule["replacements"].append((step["pattern"]["String"], step["content"]))
            elif kind == "Strip" and (step["content"], step["start"], step["stop"]) == (" ", 1, 0):
                rule["strip_leading_space"] = True
            elif kind != "Fuse":
                raise _unsupported(kind)
        if not steps:
            raise _unsupported("none")
        return ByteRule(**rule)

    def apply(self, text: str) -> bytes:
        """The bytes of one vocabulary entry."""
        if self.byte_level:
            try:
                return bytes([_BYTE_OF[character] for character in text])
            except KeyError:  # an added token, spelled as itself
                return text.encode("utf-8")
        for old, new in self.replacements:
            text = text.replace(old, new)
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(text)):
            return bytes([int(match.group(1), 16)])
        return text.encode("utf-8")


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] == "Sequence":
        return [step for inner in state["decoders"] for step in _steps(inner)]
    return [state]


def _unsupported(kind: str) -> ConfigError:
    return ConfigError(
        f"tokenizer decoder {kind!r} is not one Foreword reads (ByteLevel, or SentencePiece steps "
        "Replace, ByteFallback, Fuse, Strip of one leading space, Metaspace); use a model with one"
    )
