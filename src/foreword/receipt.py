"""The receipt of a result: what its tokens are a function of, and hashes to check them by.

`audit --replay` re-derives a result from its receipt (with the prompt ids, which `--json` adds).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict
from typing import Any

from foreword import machine
from foreword.build import NUMERICS_VERSION, Built
from foreword.kernels._defaults import arithmetic
from foreword.kernels._host import arithmetic_build
from foreword.types import Request, Sequence
from foreword.version import __version__


def ids_sha256(token_ids: SequenceOf[int]) -> str:
    """sha256 (hex) of the ids as decimal numbers joined by commas."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def make_receipt(built: Built, sequence: Sequence, chat_date: str | None = None) -> dict[str, Any]:
    """Everything the tokens of `sequence` depend on, as plain data."""
    request, config = sequence.request, built.config
    sampling = asdict(request.params)
    for name in ("seed", "n", "logprobs"):
        del sampling[name]
    sampling["max_tokens"] = request.max_tokens
    receipt: dict[str, Any] = {
        "foreword": __version__,
        "numerics_version": NUMERICS_VERSION,
        "exactness": "exact",
        "model": {
            "name": config.model,
            "sha256": built.fingerprint,
            "vocab_size": built.vocab_size,
            "eos_ids": sorted(built.checkpoint.eos_ids),
        },
        "adapter": _adapter(request),
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
    if chat_date is not None:
        receipt["chat_date"] = chat_date
    return receipt


def _adapter(request: Request) -> dict[str, str] | None:
    """sha256: of its weights and their scales; the name is only what it was called here."""
    if request.adapter is None:
        return None
    return {"name": request.adapter, "sha256": request.adapter_sha256}
