"""The fixed prompts that drafters are measured on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

DATA = Path(__file__).resolve().parents[2] / "bench/data"
GROUPS = {"multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag"}


def test_ten_questions_of_each_group_four_of_them_marked():
    lines = (DATA / "spec_bench_10.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert Counter(row["group"] for row in rows) == dict.fromkeys(GROUPS, 10)
    assert Counter(row["group"] for row in rows if row["four"]) == dict.fromkeys(GROUPS, 4)
    assert len({row["question_id"] for row in rows}) == 60
    assert all(len(row["turns"]) == 1 and row["turns"][0].strip() for row in rows)
