"""`foreword plan` and `foreword bench drafting` on the tiny model: figures, and a file that works."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"turns": [f"a b a b {number}"]}) for number in range(4)]
    path.write_text("\n".join([*lines, "plain text a b a b"]) + "\n")
    return path
