"""What the arithmetic of stock PyTorch depends on beyond a machine type: build and switches.

Two runs of equal receipts have equal bits only if these agree, too.
"""

from __future__ import annotations

import os

import torch

# Variables by which a user picks other instruction paths in PyTorch, MKL or oneDNN.
PATHS = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_DEBUG_CPU_TYPE",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
)


def arithmetic_build(device: str) -> dict[str, str]:
    """Names and versions, as plain data for a receipt."""
    found = {
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        **{name: os.environ[name] for name in PATHS if name in os.environ},
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
        found["cuda"] = str(torch.version.cuda)
    return found
