"""Beam search against Transformers' own, on the same weights: the same outputs, in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hugging import hugging_model
from safetensors.torch import load_file

import apparatus
from foreword import LLM, BeamSearchParams

ENDS = list(range(0, 512, 8))
PAD = 511
WAYS: list[dict[str, Any]] = [
    {},
    {"early_stopping": True},
    {"early_stopping": "never", "length_penalty": 0.0},
    {"early_stopping": "never", "length_penalty": 2.0},
    {"early_stopping": "never", "length_penalty": -0.5},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_outputs_are_those_of_transformers(way: dict[str, Any]) -> None:
    """Scores within 1e-3, as theirs are float32 sums over float32 rows of other kernels."""
    path = apparatus.tiny_checkpoint(num_tokens=512, eos_ids=tuple(ENDS))
    with LLM(
        str(path),
        numerics="float32",
        backend="torch",
        threads=1,
        generation_config="none",
        speculative_config={"method": "none"},
    ) as llm:
        config = llm.built.checkpoint.config
        model = hugging_model(config, load_file(llm.built.checkpoint.files[0]))
        reasons = set()
        for text, width in (("one two", 2), ("Beams", 5)):
            params = BeamSearchParams(width, max_tokens=8, **way)
            (answer,) = llm.beam_search(text, params)
            ids = answer.prompt_token_ids
            theirs = model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                num_beams=width,
                num_return_sequences=width,
                max_new_tokens=8,
                do_sample=False,
                eos_token_id=ENDS,
                pad_token_id=PAD,
                return_dict_in_generate=True,
                output_scores=True,
                length_penalty=way.get("length_penalty", 1.0),
                early_stopping=way.get("early_stopping", False),
            )
            rows = [[token for token in row if token != PAD] for row in theirs.sequences.tolist()]
            assert [one.tokens for one in answer.sequences] == rows
            scores = [one.score for one in answer.sequences]
            assert scores == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-3)
            reasons |= {one.finish_reason for one in answer.sequences}
        assert "stop" in reasons or way.get("length_penalty") == 2.0
