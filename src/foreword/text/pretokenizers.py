"""How GGUF files name pre-tokenizers (`tokenizer.ggml.pre`), and what each name stands for.

A GGUF keeps vocabulary and merges but not the rules that cut text into words; the name is all there
is. Only names whose published tokenizer.json we can rebuild exactly are listed; any other name is
refused, because a near miss gives slightly different ids and no error.
"""

from __future__ import annotations

from dataclasses import dataclass

from foreword.errors import UnsupportedModel

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """`splits`: expressions applied in order, each match a piece of its own. `nfc`: compose first.
    `ignore_merges`: a word that is in the vocabulary needs no merges. `add_bos`: when the file does
    not say."""

    splits: tuple[str, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_GPT2_LIKE = Pretokenizer((_GPT2,))
_DIGITS_GPT2 = Pretokenizer((r"\p{N}", _GPT2))
_LLAMA3_LIKE = Pretokenizer((_LLAMA3,), ignore_merges=True, add_bos=True)

PRETOKENIZERS = {
    "gpt-2": _GPT2_LIKE,
    "smollm": _DIGITS_GPT2,
    "starcoder": _DIGITS_GPT2,
    "refact": _DIGITS_GPT2,
    "qwen2": Pretokenizer((_QWEN2,), nfc=True),
    "llama-bpe": _LLAMA3_LIKE,
    "llama3": _LLAMA3_LIKE,
    "llama-v3": _LLAMA3_LIKE,
    "tekken": Pretokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "deepseek-coder": Pretokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
    ),
    "default": Pretokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}


def find_pretokenizer(name: object) -> Pretokenizer:
    """Raises UnsupportedModel for a name that is absent (None) or not in the table."""
    if isinstance(name, str) and name in PRETOKENIZERS:
        return PRETOKENIZERS[name]
    what = "is absent" if name is None else f"is {name!r}, which Foreword does not know"
    raise UnsupportedModel(
        f"tokenizer.ggml.pre {what}; guessing would change token ids. Use the model's Hugging Face "
        f"folder with its tokenizer.json, or a GGUF that names one of: {', '.join(PRETOKENIZERS)}"
    )
