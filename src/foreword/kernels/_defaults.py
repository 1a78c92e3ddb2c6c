"""The default backend and numerics: tables over what this machine has and what a file holds, never
a timing. docs/numerics.md shows them; the receipt names what was taken.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.backend import ISAS, choose_isa, load_native

log = logging.getLogger("foreword")


@dataclass(frozen=True, slots=True)
class _Modes:
    """The mode of a checkpoint without quantised matrices, and with any."""

    floats: str
    integers: str


# Backend cpu, by instruction set. The others run float32: stock products gain nothing from less.
TABLE = {
    "amx": _Modes("bfloat16", "a8"),
    "avx512": _Modes("bfloat16", "a8"),
    "avx2": _Modes("float32", "a8"),
    "portable": _Modes("float32", "a8"),
}
HAS_BFLOAT16 = ("amx", "avx512")  # the others widen bfloat16 and multiply in float32


def default_backend(device: str) -> str:
    """cpu where its extension is built and the device is the processor, else torch. Says once why
    it is not cpu when it could be."""
    if device != "cpu":
        return "torch"
    try:
        load_native()
    except KernelUnavailable as error:
        log.warning("using backend torch, which is slow: %s", error)
        return "torch"
    return "cpu"


def instruction_set(backend: str | None, asked: str | None) -> str | None:
    """What backend cpu will run, None for the others. Raises KernelUnavailable."""
    return choose_isa(load_native(), asked) if backend == "cpu" else None


def default_numerics(isa: str | None, groups: Collection[int]) -> str:
    """The mode for a checkpoint whose quantised matrices have these groups (columns that share a
    scale); without any it is one of floats. isa: of backend cpu, None for another backend."""
    if isa is None:
        return "float32"
    modes = TABLE[isa]
    return modes.integers if groups else modes.floats


def remarks(isa: str | None, numerics: str, chosen: bool, groups: Collection[int]) -> list[str]:
    """What a user should hear about the mode. chosen: by us, not by name."""
    if isa is None or isa in HAS_BFLOAT16:
        return []
    if chosen:
        return [] if groups else [f"numerics float32: {isa} has no bfloat16 instructions"]
    instead = arithmetic(isa, numerics)
    return [] if instead is None else [f"numerics {numerics} on {isa} is computed in {instead}"]


def arithmetic(isa: str | None, numerics: str | None) -> str | None:
    """What a mode is computed in where this instruction set cannot, None where it can."""
    if isa is None or isa in HAS_BFLOAT16 or numerics not in ("bfloat16", "a16"):
        return None
    return "float32, for want of bfloat16 instructions"


def describe() -> dict[str, Any]:
    """For `foreword env`: what backend cpu can run here, and what the defaults are."""
    try:
        native = load_native()
    except KernelUnavailable as error:
        return {"backend": "torch", "numerics": "float32", "cpu_extension": str(error)}
    isas = [isa for isa in ISAS if native.has_isa(isa)]
    best = str(native.best_isa())
    return {
        "backend": "cpu",
        "isa": best,
        "isas": isas,
        "numerics": asdict(TABLE[best]),
        "bfloat16_is_computed_in": arithmetic(best, "bfloat16") or "bfloat16",
    }
