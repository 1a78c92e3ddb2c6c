"""Lines about a finished answer: speed, how speculation went, the receipt in short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreword.outputs import CompletionOutput


def speed_line(output: CompletionOutput) -> str:
    """Tokens, time to first token, tokens per second."""
    metrics = output.metrics
    count = len(output.token_ids)
    total = metrics["generation_time_ms"] / 1e3
    return (
        f"{count} tokens in {total:.2f} s ({output.finish_reason}), first after "
        f"{metrics['time_to_first_token_ms']:.0f} ms, {rate(metrics['tokens_per_second'])}"
    )


def speculation_line(outputs: Sequence[CompletionOutput], drafter: str) -> str:
    """One line over all outputs: drafter, steps, acceptance."""
    each = [output.metrics["speculative_decoding"] for output in outputs]
    steps = sum(one["num_spec_steps"] for one in each)
    drafted = sum(one["num_draft_tokens"] for one in each)
    accepted = sum(one["num_accepted_draft_tokens"] for one in each)
    tokens = sum(len(output.token_ids) for output in outputs)
    sources = Counter(source for output in outputs for source in output.sources if source)
    line = f"drafter {drafter}: {steps} steps, acceptance length {ratio(tokens, steps)}"
    if drafted:
        line += f", {accepted} of {drafted} drafted tokens accepted ({accepted / drafted:.0%})"
    if len(sources) > 1:
        line += ", by source " + ", ".join(f"{name} {sources[name]}" for name in sorted(sources))
    return line


def batch_line(outputs: Sequence[CompletionOutput], seconds: float) -> str:
    tokens = sum(len(output.token_ids) for output in outputs)
    speed = tokens / seconds if seconds > 0 else None
    return f"{len(outputs)} outputs, {tokens} tokens in {seconds:.2f} s, {rate(speed)} together"


def receipt_line(receipt: dict[str, Any]) -> str:
    """The receipt in short: hashes cut to twelve digits."""
    model, numerics = receipt["model"], receipt["numerics"]
    mode = "-".join(filter(None, (numerics["mode"], numerics["quantization"])))
    backend = "-".join(filter(None, (numerics["backend"], numerics["isa"])))
    parts = [
        f"{model['name']}@{model['sha256'][:12]}",
        f"{backend}/{mode}/{numerics['kv_format']}/{numerics['device']}",
        receipt["machine"],
        f"seed {receipt['seed']}",
        f"prompt {receipt['prompt_sha256'][:12]}",
        f"tokens {receipt['tokens_sha256'][:12]}",
    ]
    if receipt["exactness"] != "exact":
        parts.insert(0, f"[{receipt['exactness']}]")
    return "receipt: " + " ".join(parts)


def ratio(count: int, of: int) -> str:
    return f"{count / of:.2f}" if of else "-"


def rate(tokens_per_second: float | None) -> str:
    return "- tokens/s" if tokens_per_second is None else f"{tokens_per_second:.1f} tokens/s"
