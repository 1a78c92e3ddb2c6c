"""The apparatus itself: its files load elsewhere, and they are hard enough to prove anything."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import apparatus

VARIANTS = [
    {},
    {"architecture": "mistral", "sliding_window": 8},
    {"architecture": "qwen2", "sliding_window": 8},
    {"architecture": "qwen3", "tied": False, "shards": 3},
    {"dtype": "bfloat16", "num_layers": 1},
]


def independent_model(folder: Path) -> torch.nn.Module:
    """The checkpoint as transformers reads it."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    return model.eval()


def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids])).logits[0, -1, : apparatus.NUM_TOKENS]
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    "options", VARIANTS, ids=lambda options: "-".join(map(str, options)) or "T"
)
def test_checkpoints_load_in_transformers_and_do_not_repeat_one_token(options):
    folder = apparatus.tiny_checkpoint(**options)
    assert folder == apparatus.tiny_checkpoint(**options), "written twice"
    output = greedy(independent_model(folder), [72, 105, 32, 260], 16)
    assert len(set(output)) >= 6, output


def test_noise_makes_a_drafter_that_is_right_about_half_of_the_time():
    target = independent_model(apparatus.target())
    drafter = independent_model(apparatus.drafter_noise())
    right = total = 0
    for prompt in (b"H", b"The quick brown fox", b"1, 2, 3, 4, ", b"def main():"):
        output = greedy(target, list(prompt), 32)
        with torch.no_grad():
            logits = drafter(torch.tensor([[*prompt, *output]])).logits[0]
        guesses = logits[:, : apparatus.NUM_TOKENS].argmax(-1)[len(prompt) - 1 : -1].tolist()
        right += sum(a == b for a, b in zip(guesses, output, strict=True))
        total += len(output)
    assert 0.3 < right / total < 0.7, right / total


def test_tokenizer_ids_are_bytes_then_added_tokens():
    tokenizer = Tokenizer.from_file(str(apparatus.target() / "tokenizer.json"))
    text = "Hé\n <|im_end|><t300>"
    expected = [*"Hé\n ".encode(), apparatus.IM_END, 300]
    assert tokenizer.encode(text).ids == expected
    assert tokenizer.decode(expected, skip_special_tokens=False) == text
    assert tokenizer.decode(expected) == "Hé\n <t300>"
    assert tokenizer.get_vocab_size() == apparatus.NUM_TOKENS < apparatus.VOCAB


def test_shards_hold_the_same_weights_as_one_file():
    whole, split = apparatus.target(), apparatus.target(shards=3)
    where = json.loads((split / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(where.values())) == 3
    with safe_open(whole / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(where)
        for name, part in where.items():
            with safe_open(split / part, "pt") as shard:
                assert torch.equal(file.get_tensor(name), shard.get_tensor(name))


def test_spec_bench_prompts_are_spread_over_six_groups():
    rows = apparatus.read_jsonl(Path(apparatus.__file__).parent / "data/spec_bench_subset.jsonl")
    assert len(rows) >= 40
    assert len({row["group"] for row in rows}) == 6
    first = apparatus.spec_bench_prompts(6)
    assert [row["group"] for text in first for row in rows if row["turns"][0] == text] == [
        "multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag",
    ]  # fmt: skip
