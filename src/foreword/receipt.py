"""The receipt of a result: what its tokens are a function of, and hashes to check them by.

`audit --replay` re-derives a result from its receipt (with the prompt ids, which `--json` adds).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, fields
from typing import Any

from foreword import machine
from foreword.build import NUMERICS_VERSION, Built
from foreword.kernels._defaults import arithmetic
from foreword.kernels._host import arithmetic_build
from foreword.params import processor_name
from foreword.text.forms import FORM_COMPILER
from foreword.types import Request, SamplingParams, Sequence, TokenLogprobs
from foreword.version import __version__

# Fields that decide which samples there are, what is reported of them, or when they are cut.
NO_TOKENS = frozenset(
    {"seed", "n", "best_of", "logprobs", "logprobs_mode", "prompt_logprobs", "time_limit"}
)


def ids_sha256(token_ids: SequenceOf[int]) -> str:
    """sha256 (hex) of the ids as decimal numbers joined by commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def as_json(params: SamplingParams) -> dict[str, Any]:
    """The parameters that the tokens of one sample depend on, as plain data; SamplingParams takes
    them back, but for the user's own callables, of which the names are all there is."""
    names = {item.name for item in fields(params)} - NO_TOKENS
    found = {name: getattr(params, name) for name in names}
    found["logits_processors"] = [processor_name(one) for one in params.logits_processors or ()]
    if params.structured_outputs is not None:
        form = asdict(params.structured_outputs).items()
        given = {key: value for key, value in form if value not in (None, False)}
        found["structured_outputs"] = given
    if params.acceptance_options is not None:
        options = params.acceptance_options.items()
        found["acceptance_options"] = {key: _plain(value) for key, value in options}
    if params.logit_bias is not None:
        found["logit_bias"] = {str(token): bias for token, bias in params.logit_bias.items()}
    return {
        item.name: list(value) if isinstance(value := found[item.name], tuple) else value
        for item in fields(params)
        if item.name in names
    }


def logprobs_sha256(entries: SequenceOf[TokenLogprobs], count: int) -> str:
    """sha256 (hex) of the tokens' logprobs and the `count` highest of each, every bit: lines of
    `id value` pairs, the token's first, values as hexadecimal floats."""
    lines = (
        " ".join(
            f"{token} {logprob.hex()}"
            for token, logprob in ((entry.token_id, entry.logprob), *entry.top[:count])
        )
        for entry in entries
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def make_receipt(built: Built, sequence: Sequence, chat_date: str | None = None) -> dict[str, Any]:
    """Everything the tokens of `sequence` depend on, as plain data."""
    request, config = sequence.request, built.config
    sampling = as_json(request.params)
    sampling["max_tokens"] = request.max_tokens
    receipt: dict[str, Any] = {
        "exactness": sequence.exactness,
        "model": {
            "name": config.model,
            "sha256": built.fingerprint,
            "vocab_size": built.vocab_size,
            "eos_ids": sorted(built.checkpoint.eos_ids),
        },
        "adapter": _adapter(request),
        **_arithmetic(built),
        "seed": request.seed,
        "sampling": sampling,
        "generation_config": dict(built.defaults),
        "max_model_len": built.context,
        "num_prompt_tokens": sequence.num_prompt,
        "prompt_sha256": ids_sha256(request.prompt_ids),
        "num_tokens": sequence.num_output,
        "tokens_sha256": ids_sha256(sequence.output_ids),
        "finish_reason": sequence.finish_reason,
    }
    if request.params.logits_processors:
        receipt["not_replayable"] = "logits_processors: " + ", ".join(sampling["logits_processors"])
    params = request.params
    if params.logprobs is not None:
        receipt["logprobs"] = {
            "count": params.logprobs,
            "mode": params.logprobs_mode,
            "sha256": logprobs_sha256(sequence.logprobs, params.logprobs),
        }
    if params.prompt_logprobs is not None:
        receipt["prompt_logprobs"] = {
            "count": params.prompt_logprobs,
            "sha256": logprobs_sha256(sequence.prompt_logprobs, params.prompt_logprobs),
        }
    if request.grammar is not None:
        receipt["form_compiler"] = FORM_COMPILER
    if chat_date is not None:
        receipt["chat_date"] = chat_date
    return receipt


def short_form(built: Built) -> str:
    """What all receipts of an engine have in common, as OpenAI's `system_fingerprint`: answers
    with the same one come from the same weights and the same arithmetic."""
    common = json.dumps({**_arithmetic(built), "weights": built.fingerprint}, sort_keys=True)
    return f"fw-{__version__}-{hashlib.sha256(common.encode()).hexdigest()[:12]}"


def _arithmetic(built: Built) -> dict[str, Any]:
    """What decides the bits of every result of an engine, beside its weights."""
    config = built.config
    return {
        "foreword": __version__,
        "numerics_version": NUMERICS_VERSION,
        "numerics": {
            "backend": config.backend,
            "isa": built.isa,
            "mode": config.numerics,
            "arithmetic": arithmetic(built.isa, config.numerics),
            "quantization": config.quantization,
            "kv_format": built.kv_format,
            "device": config.device,
        },
        "machine": machine.machine_type(),
        "build": arithmetic_build(config.device),
    }


def _plain(value: Any) -> Any:
    """An option as JSON can hold it: a function by its name."""
    return getattr(value, "__qualname__", type(value).__qualname__) if callable(value) else value


def _adapter(request: Request) -> dict[str, str] | None:
    """sha256: of its weights and their scales; the name is only what it was called here."""
    if request.adapter is None:
        return None
    return {"name": request.adapter, "sha256": request.adapter_sha256}
