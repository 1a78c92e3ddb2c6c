"""Text to token ids and back: a thin, thread-safe wrapper around one Rust tokenizer.

The meaning of an id is its bytes (`token_bytes`); the text of a list of ids is the UTF-8 reading of
their bytes, with U+FFFD for what is not UTF-8. One-shot and incremental decoding share that
definition. Loaded by `folder.py` and `gguf_vocabulary.py`; knows no model and no chat template.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from foreword.errors import ConfigError
from foreword.text.checks import check_text
from foreword.text.token_bytes import ByteRule


class Tokenizer:
    """`config` holds what tokenizer_config.json says (special tokens by role, templates, flags).

    Truncation and padding are switched off once, here; afterwards the Rust object is only read, so
    any number of threads may share one Tokenizer.
    """

    def __init__(self, raw: tokenizers.Tokenizer, config: Mapping[str, Any] | None = None) -> None:
        """Raises ConfigError for a decoder whose text is not a concatenation of token bytes."""
        raw.no_truncation()
        raw.no_padding()
        self.raw = raw
        self.config = dict(config or {})
        self._rule = ByteRule.from_decoder(raw.decoder)
        self._bytes: dict[int, bytes] = {}
        vocabulary = raw.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise ConfigError("the tokenizer has no vocabulary; tokenizer.json must list one")
        self.vocab_size = max(vocabulary.values()) + 1  # ids with a meaning: all are below
        added = raw.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.special_ids = frozenset(token for token, entry in added.items() if entry.special)
        self.bos_id = self.role_id("bos_token")
        self.eos_id = self.role_id("eos_token")

    def role_text(self, role: str) -> str | None:
        """The text of a special token by role ("bos_token", "eos_token", "pad_token", ...)."""
        value = self.config.get(role)
        value = value.get("content") if isinstance(value, Mapping) else value
        return value if isinstance(value, str) and value else None

    def role_id(self, role: str) -> int | None:
        text = self.role_text(role)
        return None if text is None else self.raw.token_to_id(text)

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a text: EOS and, from a GGUF, its end-of-turn and end-of-message ids."""
        ids = {self.eos_id, self.role_id("eot_token"), self.role_id("eom_token")}
        return frozenset(token for token in ids if token is not None)

    @property
    def strips_leading_space(self) -> bool:
        """Whether one space at the very start of a decoded text is an artefact (SentencePiece)."""
        return self._rule.strip_leading_space

    @property
    def chat_templates(self) -> dict[str, str]:
        """Named chat templates; most models have one, called "default"."""
        value = self.config.get("chat_template")
        if isinstance(value, str):
            return {"default": value}
        if isinstance(value, Mapping):
            return dict(value)
        return {entry["name"]: entry["template"] for entry in value or ()}

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. BOS and EOS are added only if the tokenizer's own files say so.

        Raises RequestError for an unpaired surrogate.
        """
        check_text(text, "prompt")
        ids: list[int] = self.raw.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`, read as the start of a text. Ids without a meaning are empty."""
        data = b"".join(self.visible_bytes(token, skip_special_tokens) for token in ids)
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def visible_bytes(self, token: int, skip_special_tokens: bool) -> bytes:
        """What the id adds to a text: nothing for a special token that is skipped."""
        if skip_special_tokens and token in self.special_ids:
            return b""
        return self.token_bytes(token)

    def token_text(self, token: int) -> str:
        """The vocabulary entry as the files spell it ("" for an id without a meaning)."""
        return self.raw.id_to_token(token) or ""

    def shown(self, token: int) -> str:
        """The text of an id by itself; U+FFFD for bytes that are not whole characters."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes an id stands for (b"" for an id without a meaning)."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._rule.apply(self.token_text(token))
        return found

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as transformers' AutoTokenizer reads."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.raw.save(str(folder / "tokenizer.json"))
        added = self.raw.get_added_tokens_decoder()
        flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **self.config,
            "added_tokens_decoder": {
                str(token): {name: getattr(entry, name) for name in flags}
                for token, entry in sorted(added.items())
            },
        }
        if templates := self.chat_templates:
            named = [{"name": name, "template": text} for name, text in templates.items()]
            config["chat_template"] = named if set(templates) - {"default"} else self.chat_template
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
