"""Pins the global switches of the host program around a step, and restores them.

What a program around us may flip and what it would move: matmul precision and TF32 (rounded
inputs), autocast (other dtypes), torch's thread count (other splits of a sum), oneDNN on/off
(another kernel), cuBLAS or cuBLASLt and sums in bfloat16 (another kernel), flush-to-zero (denormal
results), numpy's error state (exceptions where we expect inf). Knows nothing of models.

Matmul precision, oneDNN and cuBLAS settings belong to the process: the first thread in pins them,
the last out restores them. The others belong to a thread, so worker threads call `pin_thread` once.

Deterministic mode stays as the host has it. It chooses among kernels for writes that collide, and
ours never do; on a GPU it refuses products unless CUBLAS_WORKSPACE_CONFIG is set, which is an error
and not another result.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock, get_ident, local
from typing import Any

import numpy as np
import torch

_state = local()
_DENORMAL = 2.0**-140


def flushes_denormals() -> bool:
    """Whether this thread turns denormal float32 results or operands into zero."""
    return float(torch.full((1,), _DENORMAL, dtype=torch.float32, device="cpu").mul_(1.0)) == 0.0


def pin_thread() -> None:
    """For threads of our own: keep denormals, and one intra-op thread.

    Also sets the count that threads started later begin with: the caller puts that back.
    """
    torch.set_flush_denormal(False)
    torch.get_num_threads()  # a thread's first question copies the process's count: ask before
    torch.set_num_threads(1)


class _Blas:
    """How torch computes products on a GPU, as plain attributes."""

    @property
    def library(self) -> Any:
        return torch.backends.cuda.preferred_blas_library()

    @library.setter
    def library(self, value: Any) -> None:
        torch.backends.cuda.preferred_blas_library(value)

    @property
    def bfloat16_sums(self) -> tuple[bool, bool]:
        """Sum in bfloat16, and split sums; older PyTorch has only the first."""
        matmul: Any = torch.backends.cuda.matmul
        name = "allow_bf16_reduced_precision_reduction"
        return getattr(matmul, name), getattr(matmul, f"{name}_split_k", True)

    @bfloat16_sums.setter
    def bfloat16_sums(self, value: tuple[bool, bool]) -> None:
        matmul: Any = torch.backends.cuda.matmul
        matmul.allow_bf16_reduced_precision_reduction = value[0] if value[1] else value


_blas = _Blas()


def _process_switches() -> list[tuple[Any, str, object]]:
    """(owner, attribute, pinned value)."""
    switches = [
        (torch.backends.mkldnn, "enabled", True),
        (torch.backends.mkldnn.matmul, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
        (torch.backends.cuda.matmul, "fp32_precision", "ieee"),
    ]
    if torch.cuda.is_available():
        cublas = torch._C._BlasBackend.Cublas
        switches += [(_blas, "library", cublas), (_blas, "bfloat16_sums", (False, True))]
    return switches


class _Process:
    """The switches of the process, pinned while any thread is inside."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside: set[int] = set()  # threads
        self._saved: dict[int, tuple[Any, str, object]] = {}  # what the host had set last

    @contextmanager
    def pinned(self) -> Iterator[None]:
        thread = get_ident()
        try:
            with self._lock:
                self._inside.add(thread)
                self._pin()
            yield
        finally:
            with self._lock:
                self._inside.discard(thread)
                if not self._inside:
                    self._restore()

    def _pin(self) -> None:
        for number, (owner, name, value) in enumerate(_process_switches()):
            old = getattr(owner, name)
            if old != value:
                self._saved[number] = (owner, name, old)
                setattr(owner, name, value)

    def _restore(self) -> None:
        for owner, name, old in self._saved.values():
            setattr(owner, name, old)
        self._saved.clear()


_process = _Process()


@contextmanager
def pinned(device: torch.device) -> Iterator[None]:
    """Everything inside computes as in a fresh process. Re-entrant, and for any number of
    threads."""
    if getattr(_state, "depth", 0):
        _state.depth += 1
        try:
            yield
        finally:
            _state.depth -= 1
        return
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        if torch.is_autocast_enabled(device.type):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(_process.pinned())
        if torch.get_num_threads() != 1:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        if flushes_denormals():
            stack.callback(torch.set_flush_denormal, True)
            torch.set_flush_denormal(False)
        _state.depth = 1
        try:
            yield
        finally:
            _state.depth = 0


def host_settings() -> dict[str, Any]:
    """torch's version, devices and switches as the host program left them, for `foreword env`."""
    devices = range(torch.cuda.device_count())
    return {
        "version": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda_devices": [torch.cuda.get_device_name(number) for number in devices],
        "threads": torch.get_num_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "mkldnn": bool(torch.backends.mkldnn.enabled),
        "flush_denormal": flushes_denormals(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
