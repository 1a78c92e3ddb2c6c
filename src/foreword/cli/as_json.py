"""Results as plain data for --json. Numbers keep all their bits: Python prints floats exactly."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreword.outputs import CompletionOutput, Logprob, RequestOutput


def output_json(
    number: int, result: RequestOutput, output: CompletionOutput, logprobs: bool = True
) -> dict[str, Any]:
    """One sample; `number` is its prompt's place. Holds what `audit --replay` needs."""
    return {
        "prompt_index": number,
        "index": output.index,
        "prompt": result.prompt,
        "prompt_token_ids": result.prompt_token_ids,
        "text": output.text,
        "token_ids": output.token_ids,
        "logprobs": logprobs_json(output) if logprobs else None,
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "exactness": output.exactness,
        "metrics": output.metrics,
        "sources": output.sources,
        "error": output.error,
        "receipt": output.receipt,
    }


def logprobs_json(output: CompletionOutput) -> list[dict[str, Any]] | None:
    """Per token: its own logprob, and `top`, the highest ones in order."""
    if output.logprobs is None:
        return None
    return [
        {
            **_entry(token, row[token]),
            "top": [_entry(other, one) for other, one in row.items() if one.rank is not None],
        }
        for token, row in zip(output.token_ids, output.logprobs, strict=True)
    ]


def _entry(token: int, logprob: Logprob) -> dict[str, Any]:
    return {"token_id": token, **asdict(logprob)}
