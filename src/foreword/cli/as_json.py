"""Results as plain data for --json. Numbers keep all their bits: Python prints floats exactly.

Strict JSON has no infinity: a log-probability of minus infinity is -9999.0.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from foreword.echo import finite

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
        "prompt_logprobs": prompt_logprobs_json(result),
        "text_offsets": output.text_offsets,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
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
    return [_row(token, row) for token, row in zip(output.token_ids, output.logprobs, strict=True)]


def prompt_logprobs_json(result: RequestOutput) -> list[dict[str, Any] | None] | None:
    """The same of the prompt's tokens; None for the first, which nothing comes before."""
    if result.prompt_logprobs is None:
        return None
    known = len(result.prompt_logprobs)  # fewer where the request was cut
    return [
        None if row is None else _row(token, row)
        for token, row in zip(result.prompt_token_ids[:known], result.prompt_logprobs, strict=True)
    ]


def _row(token: int, row: dict[int, Logprob]) -> dict[str, Any]:
    listed = [_entry(other, one) for other, one in row.items() if one.rank is not None]
    return {**_entry(token, row[token]), "top": listed}


def _entry(token: int, logprob: Logprob) -> dict[str, Any]:
    return {"token_id": token, **asdict(logprob), "logprob": finite(logprob.logprob)}
