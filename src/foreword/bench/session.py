"""A model and this machine's limits, opened for measuring: what both benchmarks start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from foreword import machine
from foreword.bench.ceiling import MATRIX_KINDS, Demand, demand
from foreword.bench.passes import Passes
from foreword.bench.rounds import Case, Progress
from foreword.bench.scale import Scale
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.backend import load_native
from foreword.kernels.cpu.limits import Limits
from foreword.llm import LLM
from foreword.model.weights.open import open_checkpoint

_RATE_TRIALS = 3


@dataclass(slots=True)
class Session:
    """scale: what fits the model. left_out: what does not, in words. matrix_tops: 10^12 operations
    a second of the kernels in use, by kind of number."""

    llm: LLM
    limits: Limits
    demand: Demand
    passes: Passes
    scale: Scale
    left_out: list[str]
    matrix_tops: dict[str, float]

    @property
    def peak_tops(self) -> float | None:
        """The matrix rate that bounds the products of this numerics mode; float32 has none."""
        kind = MATRIX_KINDS.get(self.llm.built.numerics)
        return None if kind is None else self.matrix_tops[kind]

    @property
    def chunk(self) -> int:
        """Rows of a pass that reads a prompt, as the engine would cut it."""
        return self.llm.built.config.scheduler.max_num_batched_tokens

    def forward_cases(self) -> dict[str, Case]:
        """Reading memory, and passes of the model's forward by width."""
        cases: dict[str, Case] = {"read": self.limits.read_seconds}
        for width in self.scale.widths:
            cases[f"width {width}"] = partial(self.passes.verify, width, self.scale.width_context)
        return cases

    def setting(self) -> dict[str, Any]:
        """What was measured, for the JSON object."""
        built = self.llm.built
        return {
            "model": built.config.model,
            "numerics": built.numerics,
            "quantization": built.config.quantization,
            "backend": built.backend,
            "isa": built.isa,
            "threads": self.limits.threads,
            "kv_format": built.kv_format,
        }

    def close(self) -> None:
        self.llm.close()


def open_session(
    model: str, options: Mapping[str, Any], scale: Scale, progress: Progress | None = None
) -> Session:
    """Load `model` with LLM's `options`, without drafts; then measure the matrix rate.

    Raises ConfigError, WeightsError, DownloadError, KernelUnavailable.
    """
    require_extension()
    shape = open_checkpoint(model, options.get("revision"), progress).config
    room = min(shape.max_position, scale.longest)
    fitted, left_out = scale.fitted(room)
    llm = LLM(
        model,
        **options,
        speculative_config={"method": "none"},
        max_model_len=room,
        max_num_seqs=scale.batch or 1,
        progress=progress,
    )
    try:
        needs = demand(llm.built)
        limits = _limits(llm, needs)
        rates = {
            kind: max(limits.matrix_rate(kind) for _ in range(_RATE_TRIALS))
            for kind in ("bfloat16", "int8")
        }
        return Session(llm, limits, needs, Passes(llm.built, room), fitted, left_out, rates)
    except BaseException:
        llm.close()
        raise


def require_extension() -> None:
    """KernelUnavailable where the limits cannot be measured, whatever backend is benchmarked."""
    try:
        load_native()
    except KernelUnavailable as error:
        raise KernelUnavailable(
            "the machine's limits are measured by the compiled extension, which is not installed; "
            "run `pip install .` in the source folder"
        ) from error


def _limits(llm: LLM, needs: Demand) -> Limits:
    """Probes of the machine with the threads and kernels in use, on memory of the model's size."""
    built = llm.built
    kernels = getattr(built.engine.parts.model, "kernels", None)
    return Limits(
        getattr(kernels, "num_bytes", needs.weight_bytes),
        built.config.threads or machine.num_threads(),
        built.isa,
    )
