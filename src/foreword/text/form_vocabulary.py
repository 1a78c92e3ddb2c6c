"""A model's vocabulary as llguidance reads it: the bytes of every id, and how text becomes ids.

Only ids that stand for text take part in a form; special tokens and ids without a meaning do not.
One id beyond the vocabulary stands for "the form may end here", so that a form knows nothing of a
request's end tokens. Where a form forces a text, llguidance allows only the ids that the tokenizer
itself would spell it with; `encode` is what it asks.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import tokenizers
from llguidance import LLTokenizer, TokenizerWrapper

from foreword.text.tokenizer import Tokenizer

_BEFORE = "\n"  # written before a text that would get a leading space of its own


class FormVocabulary:
    """ends: ids that end a text. `table` is llguidance's own; `end_id`: the form may end here.
    `ordinary`: uint8 bits of the ids that stand for text, lowest bit first, as long as a mask.
    `byte_ids`: the id of each single byte, -1 where there is none."""

    def __init__(self, tokenizer: Tokenizer, num_ids: int, ends: Set[int]) -> None:
        self.num_ids = num_ids
        self.end_id = num_ids
        hidden = tokenizer.special_ids | ends
        texts = [b"" if i in hidden else tokenizer.token_bytes(i) for i in range(num_ids)]
        self.spelled = Spelling(tokenizer, texts)
        self.tokens = self.spelled.tokens
        # The table keeps the spelling, which must not know it: Python cannot see that ring.
        self.table = LLTokenizer(
            TokenizerWrapper(self.spelled), n_vocab=num_ids + 1, eos_token=[self.end_id]
        )
        mask_bytes = (num_ids + 1 + 31) // 32 * 4
        bits = np.zeros(mask_bytes * 8, dtype=np.uint8)
        bits[[token for token, data in enumerate(texts) if data]] = 1
        self.ordinary = np.packbits(bits, bitorder="little")
        self.byte_ids = [self.spelled.pieces.get(bytes((byte,)), -1) for byte in range(256)]

    def is_ordinary(self, token: int) -> bool:
        """Whether the id stands for text."""
        return 0 <= token < self.num_ids and self.tokens[token] != b""


class Spelling:
    """What llguidance's wrapper asks for: the bytes of all ids, and `spelling(text)`.

    texts: bytes per id, b"" for those that stand for no text."""

    def __init__(self, tokenizer: Tokenizer, texts: list[bytes]) -> None:
        self._raw = tokenizers.Tokenizer.from_str(tokenizer.raw.to_str())
        self._raw.encode_special_tokens = True  # "<|im_end|>" in a text is text
        self.pieces = {data: token for token, data in enumerate(texts) if data}
        self._longest = max(map(len, self.pieces), default=1)
        self._clean = not tokenizer.strips_leading_space
        self._skipped = 0 if self._clean else len(self._ids(_BEFORE))
        self.eos_token_id, self.bos_token_id = len(texts), None
        self.tokens = [*texts, b"<|form_end|>"]
        self.special_token_ids = [len(texts)]

    def __call__(self, text: str) -> list[int]:
        """The ids of a text in the middle of a text; they stand for exactly its bytes."""
        data = text.encode("utf-8")  # raises for bytes: the wrapper then sends texts
        ids = self._ids(text) if self._clean else self._ids(_BEFORE + text)[self._skipped :]
        spelled = b"".join(self.tokens[token] for token in ids)
        return ids if spelled == data else self._greedy(data)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._raw.encode(text, add_special_tokens=False).ids
        return ids

    def _greedy(self, data: bytes) -> list[int]:
        """The longest piece first: for a tokenizer that changes what it reads. Stops where there
        is none."""
        ids: list[int] = []
        start = 0
        while start < len(data):
            for size in range(min(self._longest, len(data) - start), 0, -1):
                token = self.pieces.get(data[start : start + size])
                if token is not None:
                    ids.append(token)
                    start += size
                    break
            else:
                break
        return ids
