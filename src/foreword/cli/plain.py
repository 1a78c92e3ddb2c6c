"""`generate --verify`: decode every sample again, alone and without drafts, and compare every bit.

Nothing is shared with the first run: another engine, weights read anew, no prefix cache.
"""

from __future__ import annotations

import gc
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foreword.types import SamplingParams

if TYPE_CHECKING:
    from foreword.cli.show import Progress
    from foreword.outputs import CompletionOutput, Logprob, RequestOutput


@dataclass(slots=True)
class Comparison:
    """Counts of what was found equal, up to the first difference if there is one."""

    outputs: int = 0
    tokens: int = 0
    logprobs: int = 0
    difference: str | None = None
    plain_tokens_per_second: float | None = None

    @property
    def verdict(self) -> str:
        if self.difference is not None:
            return f"different: {self.difference}"
        return (
            f"identical: {self.tokens} tokens and {self.logprobs} logprobs "
            f"(outputs: {self.outputs}) are bit for bit those of plain decoding alone"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "identical": self.difference is None,
            "outputs": self.outputs,
            "tokens": self.tokens,
            "logprobs": self.logprobs,
            "difference": self.difference,
            "plain_tokens_per_second": self.plain_tokens_per_second,
        }


def verify(
    model: str,
    arguments: Mapping[str, Any],
    params: SamplingParams,
    results: Sequence[RequestOutput],
    progress: Progress | None,
    adapter: str | None = None,
) -> Comparison:
    """Run each sample of `results` by itself; the first difference ends the comparison."""
    from foreword.llm import LLM

    gc.collect()  # the first engine must not share the memory with this one
    alone = {"max_num_seqs": 1, "enable_prefix_caching": False}
    plain = LLM(
        model,
        **{**arguments, **alone, "speculative_config": {"method": "none"}},
        progress=progress,
    )
    comparison = Comparison()
    seconds, tokens = 0.0, 0
    samples = [(number, one, out) for number, one in enumerate(results) for out in one.outputs]
    for done, (number, result, output) in enumerate(samples):
        if progress is not None:
            progress("verifying", done, len(samples))
        code = output.receipt["sampling"].get("arithmetic_code")
        alone_params = replace(
            params,
            seed=output.seed,
            n=1,
            best_of=None,
            time_limit=None,
            arithmetic_code=code,
        )
        if output.finish_reason == "timeout":  # compared as far as it went
            if not output.token_ids:
                continue
            alone_params = replace(alone_params, max_tokens=len(output.token_ids))
        again = plain.generate(result.prompt_token_ids, alone_params, adapter=adapter)
        (expected,) = again[0].outputs
        if again[0].prompt_logprobs != result.prompt_logprobs:
            comparison.difference = f"prompt {number}: its logprobs differ"
            break
        seconds += expected.metrics["generation_time_ms"] / 1e3
        tokens += len(expected.token_ids)
        found = compare(output, expected, comparison)
        if found is not None:
            comparison.difference = f"prompt {number}, sample {output.index}, {found}"
            break
        comparison.outputs += 1
    plain.close()
    comparison.plain_tokens_per_second = tokens / seconds if seconds > 0 else None
    return comparison


def compare(
    output: CompletionOutput, expected: CompletionOutput, comparison: Comparison
) -> str | None:
    """The first difference in words, or None; what is equal before it is counted."""
    rows = output.logprobs or [{}] * len(output.token_ids)
    expected_rows = expected.logprobs or [{}] * len(expected.token_ids)
    pairs = zip(output.token_ids, expected.token_ids, rows, expected_rows, strict=False)
    for position, (token, right, row, right_row) in enumerate(pairs):
        if token != right:
            return (
                f"token {position}: {_named(token, row)} with speculation, "
                f"{_named(right, right_row)} plain"
            )
        comparison.tokens += 1
        if [(key, _bits(one)) for key, one in row.items()] != [
            (key, _bits(one)) for key, one in right_row.items()
        ]:
            return (
                f"logprobs of token {position} ({token}): {_named(token, row)} with speculation, "
                f"{_named(token, right_row)} plain"
            )
        comparison.logprobs += len(row)
    cut = output.finish_reason == "timeout"
    ends = [
        (len(one.token_ids), None if cut else one.finish_reason, one.text)
        for one in (output, expected)
    ]
    if ends[0] != ends[1]:
        return f"end: (tokens, reason, text) {ends[0]!r} with speculation, {ends[1]!r} plain"
    return None


def _bits(entry: Logprob) -> tuple[bytes, int | None]:
    return struct.pack("<d", entry.logprob), entry.rank


def _named(token: int, row: Mapping[int, Logprob]) -> str:
    entry = row.get(token)
    return str(token) if entry is None else f"{token} {entry.decoded_token!r} ({entry.logprob!r})"
