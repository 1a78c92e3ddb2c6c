"""Strict chats: no text in a message can become a control token, whoever typed it.

Before rendering, every control text inside a message is broken by an invisible mark; what still
reads as a control text afterwards was written by the template. Those take a private spelling, the
marks are removed, and a second tokenizer that knows only the private spellings encodes the result.
So a message's "<|im_end|>" stays seven harmless pieces, and a chat without such text gets the same
ids as in the default mode.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

import tokenizers

from foreword.errors import RequestError
from foreword.text.tokenizer import Tokenizer

# Noncharacters: valid in a str, never used in text. Strict mode refuses messages that hold them.
MARK, _OPEN, _CLOSE = "\ufdd0", "\ufdd1", "\ufdd2"


class StrictEncoder:
    """Built once per tokenizer; then only read."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        raw = tokenizer.raw
        added = raw.get_added_tokens_decoder()
        # Runs of blanks are text that happens to be an added token; everything else is control.
        self._controls = {
            entry.content: token
            for token, entry in added.items()
            if len(entry.content) > 1 and not entry.content.isspace()
        }
        self._plain = tokenizers.Tokenizer(raw.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(raw, part) is not None:
                setattr(self._plain, part, getattr(raw, part))
        spelled = {
            token: self._spelling(token) if entry.content in self._controls else entry.content
            for token, entry in added.items()
        }
        self._plain.add_tokens(
            [_respelled(entry, spelled[token]) for token, entry in sorted(added.items())]
        )
        self._ids = {self._plain.token_to_id(text): token for token, text in spelled.items()}
        longest_first = sorted(self._controls, key=len, reverse=True)
        choice = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._genuine = re.compile(choice)
        self._anywhere = re.compile(f"(?=(?:{choice}))")
        self._heads = {text[:cut] for text in self._controls for cut in range(1, len(text))}
        self._tails = {text[cut:] for text in self._controls for cut in range(1, len(text))}
        self._longest = max(map(len, self._controls), default=0)

    def protect(self, value: Any) -> Any:
        """The same nest of mappings and lists with every control text in a string broken."""
        if isinstance(value, str):
            return self._protect_text(value)
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.protect(item) for item in value]
        return value

    def encode(self, rendered: str) -> list[int]:
        """Ids of a text rendered from protected messages."""
        controls = self._controls
        text = self._genuine.sub(lambda match: self._spelling(controls[match[0]]), rendered)
        ids = self._plain.encode(text.replace(MARK, ""), add_special_tokens=False).ids
        control_ids = set(controls.values())
        for token in ids:
            if token in control_ids and token not in self._ids:
                raise RequestError(
                    "strict mode cannot keep a message's text apart from a control token; "
                    f"remove {self._plain.id_to_token(token)!r} from it",
                    "messages",
                )
        return [self._ids.get(token, token) for token in ids]

    def _protect_text(self, text: str) -> str:
        for reserved in (MARK, _OPEN, _CLOSE):
            if reserved in text:
                raise RequestError(
                    f"strict mode reserves U+{ord(reserved):04X}; remove it from the messages",
                    "messages",
                )
        cuts = {match.start() + 1 for match in self._anywhere.finditer(text)}
        for length in range(1, min(self._longest, len(text) + 1)):
            if text[-length:] in self._heads:  # could be completed by what follows
                cuts.add(len(text) - length + 1)
            if text[:length] in self._tails:  # could complete what comes before
                cuts.add(length - 1)
        pieces = []
        start = 0
        for cut in sorted(cuts):
            pieces.append(text[start:cut])
            start = cut
        return MARK.join([*pieces, text[start:]])

    @staticmethod
    def _spelling(token: int) -> str:
        return f"{_OPEN}{token}{_CLOSE}"


def _respelled(entry: tokenizers.AddedToken, text: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        text,
        single_word=entry.single_word,
        lstrip=entry.lstrip,
        rstrip=entry.rstrip,
        normalized=entry.normalized,
        special=entry.special,
    )


@functools.lru_cache(maxsize=8)
def strict_encoder(tokenizer: Tokenizer) -> StrictEncoder:
    return StrictEncoder(tokenizer)
