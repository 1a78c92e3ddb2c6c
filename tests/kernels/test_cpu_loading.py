"""Packing: what a load takes of memory, and that it is packed alike by any number of threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from cpu_rig import NATIVE, decoder_of, needs_native
from quantised_rig import WIDE, mixed
from rig import assert_same_bits, ids_of, one_pass

import apparatus

pytestmark = needs_native

# In a process of its own, because the high-water mark is the process's: loads once to warm up
# everything that stays (buffers of torch, imports), then starts the mark anew.
PROGRAM = """
import gc, sys
from foreword import build
from foreword.config import EngineConfig

def status(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

path, numerics, quantization = sys.argv[1:]
config = EngineConfig(path, backend="cpu", numerics=numerics, quantization=quantization or None)
config, checkpoint = build.open_target(config)
size = build.load_tokenizer(checkpoint).vocab_size
checkpoint.weight("model.layers.0.mlp.down_proj.weight")
gc.collect()
open("/proc/self/clear_refs", "w").write("5")
before, seen = status("VmRSS"), []
model = build.load_model(config, checkpoint, size, 256, lambda *step: seen.append(step))
print(before, status("VmHWM"), model.kernels.num_bytes)
name = f"loading {checkpoint.path.name}"
assert seen == [(name, done, 31) for done in range(1, 32)], seen
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize(
    ("numerics", "quantization", "largest"),
    [("a8", "", 1), ("a16", "", 1), ("float32", "", 4), ("a8", "int8", 4)],
)
def test_peak_memory_of_a_load(numerics: str, quantization: str, largest: int) -> None:
    """At most what is packed, one tensor (its largest form: bytes or float32), and a fifth."""
    words = [str(apparatus.smollm2_path()), numerics, quantization]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    before, peak, packed = map(int, done.stdout.split())
    tensor = 49152 * 576 * largest  # the embedding
    assert peak - before <= packed + tensor + packed // 5, f"{(peak - before) / 1e6:.0f} MB"


@pytest.mark.parametrize("numerics", ["float32", "bfloat16", "a16", "a8"])
def test_any_number_of_threads_packs_alike(numerics: str) -> None:
    tensors = mixed()
    if numerics not in ("a16", "a8"):
        tensors = {
            name: part if isinstance(part, torch.Tensor) else part.dequantize()
            for name, part in tensors.items()
        }
    results = []
    for threads in (1, 2, 5):
        model = decoder_of(WIDE, numerics, NATIVE.best_isa(), threads, tensors)
        results.append(one_pass(model, ids_of(20)))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 7, 13])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_any_alignment_of_the_source(dtype: torch.dtype, offset: int) -> None:
    """Files hold tensors at any offset: the packer reads bytes."""
    from cpu_rig import pack, product

    weight = torch.randn(40, 48, generator=torch.Generator().manual_seed(1)).to(dtype)
    room = np.zeros(weight.numel() * weight.element_size() + offset, dtype=np.uint8)
    room[offset:] = weight.view(torch.uint8).numpy().reshape(-1)
    address = room.ctypes.data + offset
    x, best = torch.randn(3, 48), NATIVE.best_isa()
    wanted = product("float32", best, pack("float32", best, weight), x, 40)
    form = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}[dtype]
    moved = NATIVE.float_weight(NATIVE.Store(), NATIVE.Pool(1), form, 0, 40, 48, address, 0)
    assert_same_bits(product("float32", best, moved, x, 40), wanted)
