"""The prompts and the text that ship with the package; data/README.md says where they are from."""

from __future__ import annotations

import json
from importlib.resources import files

PASSAGE = 900  # characters of a passage to be summed up


def free_prompts() -> list[str]:
    """Eight requests for free writing, about 130 tokens each."""
    lines = _read("free.jsonl").splitlines()
    return [str(json.loads(line)["turns"][0]) for line in lines if line.strip()]


def mixed_prompts() -> list[str]:
    """Sixteen: the free ones, and eight to sum up a passage, so that answers can copy."""
    text = perplexity_text()
    starts = [text.index(" ", place * len(text) // 8) for place in range(8)]
    passages = [text[start + 1 : text.index(" ", start + PASSAGE)] for start in starts]
    asked = [f"Sum up this passage in a few sentences:\n\n{passage}" for passage in passages]
    return [one for pair in zip(free_prompts(), asked, strict=True) for one in pair]


def perplexity_text() -> str:
    """English prose in the public domain, about 5,400 tokens."""
    return _read("alice.txt")


def _read(name: str) -> str:
    return files("foreword.bench").joinpath("data", name).read_text(encoding="utf-8")
