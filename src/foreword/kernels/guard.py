"""Pins the global switches of the host program around a step, and restores them.

What a program around us may flip and what it would move: matmul precision and TF32 (rounded
inputs), autocast (other dtypes), torch's thread count (other splits of a sum), oneDNN on/off
(another kernel), flush-to-zero (denormal results), numpy's error state (exceptions where we expect
inf). Knows nothing of models. Flush-to-zero and autocast belong to a thread, so worker threads call
`pin_thread` once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import local
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


@contextmanager
def pinned(device: torch.device) -> Iterator[None]:
    """Everything inside computes as in a fresh process. Re-entrant per thread."""
    if getattr(_state, "depth", 0):
        _state.depth += 1
        try:
            yield
        finally:
            _state.depth -= 1
        return
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(np.errstate(all="ignore"))
        _pin(stack, torch.backends.mkldnn, "enabled", True)
        matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        _pin(stack, matmul, "fp32_precision", "ieee")
        _pin(stack, torch.backends.cuda.matmul, "fp32_precision", "ieee")
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


def _pin(stack: ExitStack, owner: Any, name: str, value: object) -> None:
    old = getattr(owner, name)
    if old != value:
        stack.callback(setattr, owner, name, old)
        setattr(owner, name, value)


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
