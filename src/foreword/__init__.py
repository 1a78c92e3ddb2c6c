"""Foreword: exact batched speculative decoding. Faster than plain decoding, never a token
different."""

from typing import TYPE_CHECKING, Any

from foreword.beam.params import BeamSearchParams
from foreword.types import SamplingParams
from foreword.version import __version__

__all__ = ["LLM", "BeamSearchParams", "SamplingParams", "__version__"]

if TYPE_CHECKING:
    from foreword.llm import LLM


def __getattr__(name: str) -> Any:
    """`foreword.LLM` is imported when asked for: the words above it need no torch."""
    if name == "LLM":
        from foreword.llm import LLM

        return LLM
    raise AttributeError(f"module 'foreword' has no attribute {name!r}")
