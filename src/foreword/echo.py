"""One sample as aligned lists, an entry per token: the form of the completions API, with or without
the prompt before it (`echo`).

Text and offsets are in characters. Without echo offsets count on from the length of the prompt's
text, as that API's do; with it they start at 0, and the text is the one-shot reading of prompt and
output together. Knows results and the tokenizer; no engine, no HTTP.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foreword.outputs import CompletionOutput, Logprob, RequestOutput
from foreword.text.stream import read_prompt
from foreword.text.tokenizer import Tokenizer

Rows = list[dict[int, Logprob] | None]

FLOOR = -9999.0  # stands for minus infinity where a text format has none


@dataclass(frozen=True, slots=True)
class Aligned:
    """All lists have one entry per token. A logprob is None where there is none: of a prompt's
    first token, and where none were asked for. Numbers are finite."""

    text: str
    token_ids: list[int]
    tokens: list[str]
    text_offsets: list[int]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[int, float] | None]  # the highest ones, and the token's own


def aligned(
    result: RequestOutput, output: CompletionOutput, tokenizer: Tokenizer, echo: bool = False
) -> Aligned:
    """`output`, one of `result`'s, by itself or after its prompt."""
    before, starts = read_prompt(tokenizer, result.prompt_token_ids)
    ids = list(output.token_ids)
    offsets = [len(before) + offset for offset in output.text_offsets]
    rows: Rows = [*output.logprobs] if output.logprobs is not None else nothing(len(ids))
    text = output.text
    if echo:
        ids = [*result.prompt_token_ids, *ids]
        offsets = [*starts, *offsets]
        known = result.prompt_logprobs or []  # fewer where the request was cut inside its prompt
        rows = [*known, *nothing(len(starts) - len(known)), *rows]
        text = before + text
    return Aligned(
        text,
        ids,
        [token_name(tokenizer, token) for token in ids],
        offsets,
        [
            None if row is None else finite(row[token].logprob)
            for token, row in zip(ids, rows, strict=True)
        ],
        [
            None if row is None else {other: finite(one.logprob) for other, one in row.items()}
            for row in rows
        ],
    )


def nothing(count: int) -> Rows:
    return [None] * count


def token_name(tokenizer: Tokenizer, token: int) -> str:
    """The text of an id by itself; "bytes:\\xf0\\x9f" for one that is not whole characters."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(logprob: float) -> float:
    """The same number, or FLOOR: JSON has no infinity."""
    return logprob if math.isfinite(logprob) else FLOOR
