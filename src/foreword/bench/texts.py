"""The prompts and the text that ship with the package; data/README.md says where they are from."""

from __future__ import annotations

import json
from importlib.resources import files


def free_prompts() -> list[str]:
    """Eight requests for free writing, about 130 tokens each."""
    lines = _read("free.jsonl").splitlines()
    return [str(json.loads(line)["turns"][0]) for line in lines if line.strip()]


def perplexity_text() -> str:
    """English prose in the public domain, about 5,400 tokens."""
    return _read("alice.txt")


def _read(name: str) -> str:
    return files("foreword.bench").joinpath("data", name).read_text(encoding="utf-8")
