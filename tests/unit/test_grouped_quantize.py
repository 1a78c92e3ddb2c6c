"""`--quantization int8|int4`: what it makes of a matrix, and who is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import apparatus
from foreword.build import build
from foreword.config import EngineConfig
from foreword.errors import ConfigError, WeightsError
from foreword.llm import LLM
from foreword.model.weights.grouped import GroupedInt
from foreword.model.weights.open import open_checkpoint
from foreword.model.weights.quantize import int4, int8, quantised
from foreword.types import SamplingParams
from quantised_files import quantised_gguf

NAMES = ("int8", "int4")


def matrix(rows: int = 40, columns: int = 96, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_int8_is_one_symmetric_scale_per_row() -> None:
    weight = matrix(300)
    made = int8(weight)
    assert (made.bits, made.group, made.groups, made.signed) == (8, 96, 1, True)
    assert made.offsets() is None
    wanted = (weight.abs().amax(1, keepdim=True) / 127).float()
    assert torch.equal(made.scale, wanted)
    assert torch.equal(made.q.float(), (weight / wanted).round().clamp(-127, 127))
    assert int(made.q.abs().amax()) == 127
    assert made.num_bytes == 300 * (96 + 4)


def test_int4_is_a_scale_and_an_offset_per_32() -> None:
    weight = matrix(300)
    made = int4(weight)
    assert (made.bits, made.group, made.groups, made.signed) == (4, 32, 3, False)
    assert made.scale.dtype == made.offset.dtype == torch.float16
    assert int(made.q.amin()) == 0
    assert int(made.q.amax()) == 15
    error = (made.dequantize() - weight).abs().view(300, 3, 32).amax(2)
    assert bool((error <= 0.52 * made.scales() + 0.002).all())
    assert made.num_bytes == 300 * (48 + 12)


@pytest.mark.parametrize("method", [int8, int4])
def test_every_row_stands_alone(method) -> None:  # type: ignore[no-untyped-def]
    weight = matrix(300)
    whole = method(weight)
    for row in (0, 255, 256, 299):
        alone = method(weight[row : row + 1])
        assert torch.equal(alone.dequantize()[0], whole.dequantize()[row])


@pytest.mark.parametrize("method", [int8, int4])
@pytest.mark.parametrize("value", [0.0, 1.5, -2.0])
def test_constant_rows(method, value: float) -> None:  # type: ignore[no-untyped-def]
    made = method(torch.full((3, 64), value)).dequantize()
    assert float((made - value).abs().max()) <= abs(value) * 2**-20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", [int8, int4])
def test_any_float_dtype(method, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    weight = matrix().to(dtype)
    assert torch.equal(method(weight).dequantize(), method(weight.float()).dequantize())


def test_a_checkpoint_whose_matrices_are_quantised_when_read() -> None:
    plain = open_checkpoint(apparatus.target())
    small = quantised(plain, "int8")
    for name in plain.names():
        weight = small.weight(name)
        assert isinstance(weight, GroupedInt) == (len(plain.shape(name)) == 2)
        if isinstance(weight, GroupedInt):
            assert small.is_grouped(name)
            assert small.kind(name) == "INT8"
            assert torch.equal(small.tensor(name), weight.dequantize())
            assert weight.num_bytes == small.num_bytes(name)
        else:
            assert torch.equal(weight, plain.tensor(name))
    assert small.fingerprint() != plain.fingerprint()
    assert replace(small, quantization="").fingerprint() == plain.fingerprint()
    assert small.stored_bytes < 0.3 * plain.stored_bytes


def test_a_quantised_file_is_quantised_anew_only_when_asked(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(quantised_gguf(tmp_path / "m.gguf", apparatus.target(), "Q4_1"))
    name = "model.layers.0.mlp.down_proj.weight"
    assert checkpoint.weight(name).bits == 4
    again = quantised(checkpoint, "int8").weight(name)
    assert torch.equal(again.q, int8(checkpoint.tensor(name)).q)


def test_matrices_that_cannot_be_quantised_are_named() -> None:
    checkpoint = open_checkpoint(apparatus.target())
    name = "model.layers.0.mlp.down_proj.weight"

    def with_weight(made: torch.Tensor) -> GroupedInt:
        stored = replace(checkpoint.tensors[name], read=lambda: made)
        changed = replace(checkpoint, tensors={**checkpoint.tensors, name: stored})
        return quantised(changed, "int4").weight(name)  # type: ignore[return-value]

    with pytest.raises(WeightsError, match=r"down_proj\.weight' holds values that are not finite"):
        with_weight(torch.full((64, 128), float("nan")))
    with pytest.raises(WeightsError, match=r"down_proj\.weight' exceeds what int4 can hold"):
        with_weight(torch.full((64, 128), 1e6))
    narrow = replace(checkpoint.tensors[name], shape=(64, 72))
    with pytest.raises(ConfigError, match=r"int4 needs rows of a multiple of 32.*down_proj.*int8"):
        quantised(replace(checkpoint, tensors={name: narrow}), "int4")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("numerics", ["float32", "bfloat16", "a16", "a8"])
def test_the_receipt_says_so(name: str, numerics: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4)
    outputs = []
    for chosen in (name, None):
        llm = LLM(str(apparatus.target()), numerics=numerics, quantization=chosen)
        outputs.append(llm.generate([1, 2, 3], params)[0].outputs[0])
        llm.close()
    asked, plain = (output.receipt for output in outputs)
    assert asked["numerics"]["quantization"] == name
    assert plain["numerics"]["quantization"] is None
    assert asked["model"]["sha256"] != plain["model"]["sha256"]


def test_an_unknown_name_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="quantization must be one of int8, int4; got 'int2'"):
        EngineConfig(model="x", quantization="int2")


@pytest.mark.parametrize("numerics", ["a16", "a8"])
def test_kv_is_bfloat16(numerics: str) -> None:
    built = build(EngineConfig(model=str(apparatus.target()), numerics=numerics))
    built.close()
    assert built.kv_format == "bfloat16"


def test_memory_counts_what_is_packed(tmp_path: Path) -> None:
    from foreword.fit import weight_bytes

    path = quantised_gguf(tmp_path / "m.gguf", apparatus.target(), "Q4_1")
    checkpoint = open_checkpoint(path)
    sizes = {
        numerics: weight_bytes(EngineConfig(model=str(path), numerics=numerics), checkpoint)
        for numerics in ("float32", "bfloat16", "a8")
    }
    assert sizes["a8"] < sizes["bfloat16"] < sizes["float32"]
    assert sizes["a8"] > sum(np.prod(checkpoint.shape(name)) for name in checkpoint.names())
