"""Fixtures over `serving_rig`: one server for a file of tests, and the library to compare with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serving_rig import Served, open_llm, serving

from foreword import LLM


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with open_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Served]:
    """Only the server's thread may step; ask the library before or by `alone`."""
    with serving(llm) as served:
        yield served


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    """The same model, plain decoding, one request at a time: what every answer must equal."""
    with open_llm(speculative_config={"method": "none"}, enable_prefix_caching=False) as llm:
        yield llm
