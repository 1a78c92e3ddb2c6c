"""A host program may flip any global switch: the bits stay, and it is put back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from rig import CONFIGS, assert_same_bits, build, ids_of, in_blocks, line, store, straight, weights

from foreword.kernels import guard
from foreword.kernels.guard import flushes_denormals, pinned
from foreword.model.batch import Batch
from foreword.model.llama import Decoder

Host = Callable[[], AbstractContextManager[Any]]
CPU = torch.device("cpu")
MATMUL = torch.backends.mkldnn.matmul


@contextmanager
def flipped(put: Callable[[Any], None], old: Any, new: Any) -> Iterator[None]:
    put(new)
    try:
        yield
    finally:
        put(old)


def attribute(owner: Any, name: str, value: object) -> AbstractContextManager[None]:
    return flipped(lambda new: setattr(owner, name, new), getattr(owner, name), value)


def medium_precision() -> AbstractContextManager[None]:
    return flipped(torch.set_float32_matmul_precision, "highest", "medium")


@contextmanager
def default_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


@contextmanager
def everything() -> Iterator[None]:
    with (
        medium_precision(),
        attribute(torch.backends.mkldnn, "enabled", False),
        torch.autocast("cpu", dtype=torch.bfloat16),
        flipped(torch.set_flush_denormal, False, True),
        flipped(torch.set_default_dtype, torch.float32, torch.float64),
        flipped(torch.set_num_threads, 1, 3),
        flipped(torch.use_deterministic_algorithms, False, True),
        np.errstate(all="raise"),
        torch.enable_grad(),
    ):
        yield


HOSTS: dict[str, Host] = {
    "nothing": nullcontext,
    "matmul precision medium": medium_precision,
    "onednn bfloat16 products": lambda: attribute(MATMUL, "fp32_precision", "bf16"),
    "onednn off": lambda: attribute(torch.backends.mkldnn, "enabled", False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "flush denormals": lambda: flipped(torch.set_flush_denormal, False, True),
    "default dtype float64": lambda: flipped(torch.set_default_dtype, torch.float32, torch.float64),
    "default device meta": default_device,
    "2 threads": lambda: flipped(torch.set_num_threads, 1, 2),
    "4 threads": lambda: flipped(torch.set_num_threads, 1, 4),
    "deterministic": lambda: flipped(torch.use_deterministic_algorithms, False, True),
    "numpy raises": lambda: np.errstate(all="raise"),
    "gradients": torch.enable_grad,
    "inference mode": torch.inference_mode,
    "everything": everything,
}


def precision() -> str:
    """torch refuses to answer when a host has mixed its old and new ways of setting it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


def switches() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "precision": precision(),
        "onednn precision": MATMUL.fp32_precision,
        "cuda precision": torch.backends.cuda.matmul.fp32_precision,
        "onednn": torch.backends.mkldnn.enabled,
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "flush": flushes_denormals(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "numpy": np.geterr(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
    }


def denormal_weights() -> dict[str, torch.Tensor]:
    """As the rig's, with values, rows and a whole layer's output deep in the denormals."""
    made = {key: tensor.clone() for key, tensor in weights(CONFIGS["mixed"]).items()}
    made["model.embed_tokens.weight"][::3] *= 1e-38
    made["model.layers.0.self_attn.o_proj.weight"] *= 1e-39
    made["model.layers.1.mlp.down_proj.weight"] *= 1e-39
    return made


IDS = ids_of(37, 1)
KINDS = [("torch", "float32", 1), ("torch", "bfloat16", 3), ("reference", "float32", 1)]


class Scaled(dict[str, torch.Tensor]):
    """Reading a weight is arithmetic, as it is with quantised files."""

    def __getitem__(self, name: str) -> torch.Tensor:
        return (super().__getitem__(name) * 2.0) * 0.5


def load(backend: str, numerics: str, threads: int) -> Decoder:
    return build(CONFIGS["mixed"], numerics, backend, threads, tensors=denormal_weights())


def run(model: Decoder) -> np.ndarray:
    kv = store(model)
    ids = IDS[:18] if model.kernels.name == "reference" else IDS
    return in_blocks(model, ids, [17, 1, 3], kv)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[Decoder, np.ndarray, Any]]:
    model = load(*request.param)
    yield model, run(model), request.param
    model.kernels.close()


@pytest.mark.parametrize("host", HOSTS)
def test_a_pass_keeps_its_bits_and_puts_the_switches_back(
    host: str, loaded: tuple[Decoder, np.ndarray, Any]
) -> None:
    model, wanted, _ = loaded
    with HOSTS[host]():
        kv = store(model)  # made outside of any guard, too
        before = switches()
        got = run(model)
        assert switches() == before
        with pytest.raises(IndexError):  # an exception inside the pass: an id beyond the vocabulary
            model.forward(Batch.of([line([9999], straight(1), 0, 1)]), kv)
        assert switches() == before
    assert_same_bits(got, wanted)


@pytest.mark.parametrize("host", HOSTS)
def test_loading_keeps_its_bits_and_puts_the_switches_back(
    host: str, loaded: tuple[Decoder, np.ndarray, Any]
) -> None:
    _, wanted, kind = loaded
    tensors = Scaled(denormal_weights())
    backend, numerics, threads = kind
    with HOSTS[host]():
        before = switches()
        model = build(CONFIGS["mixed"], numerics, backend, threads, tensors=tensors)
        assert switches() == before
    got = run(model)
    model.kernels.close()
    assert_same_bits(got, wanted)


def test_the_switches_would_move_bits_without_the_guard() -> None:
    """The tests above can fail: products and denormals do change under these hosts."""
    x, w = torch.randn(16, 256), torch.randn(256, 256)
    plain = x @ w
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not torch.equal((x @ w).float(), plain)
    small = torch.full((4,), 1e-39)
    with HOSTS["flush denormals"]():
        assert not (small * 0.5).any()
    assert (small * 0.5).all()


def test_the_guard_is_reentrant_and_ends_with_the_outermost() -> None:
    with HOSTS["everything"]():
        before = switches()
        with pinned(CPU):
            inner = switches()
            assert inner["threads"] == 1
            assert not inner["flush"]
            assert not inner["autocast"]
            assert inner["onednn"]
            assert inner["onednn precision"] == "ieee"
            assert inner["cuda precision"] in ("ieee", "none")
            with pytest.raises(ZeroDivisionError), pinned(CPU):
                raise ZeroDivisionError
            assert switches() == inner
        assert switches() == before


def in_two_threads(host: Callable[[], None]) -> list[str]:
    """A enters the guard, `host` runs, B enters, A leaves, B leaves; what `MATMUL` says to B."""
    a_inside, b_inside, a_left = (threading.Event() for _ in range(3))
    seen = []

    def a() -> None:
        with pinned(CPU):
            a_inside.set()
            assert b_inside.wait(10)
        a_left.set()

    def b() -> None:
        assert a_inside.wait(10)
        host()
        with pinned(CPU):
            seen.append(MATMUL.fp32_precision)
            b_inside.set()
            assert a_left.wait(10)
            seen.append(MATMUL.fp32_precision)
        seen.append(MATMUL.fp32_precision)

    threads = [threading.Thread(target=target) for target in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def test_a_thread_that_leaves_does_not_unpin_one_that_computes() -> None:
    with HOSTS["everything"]():
        before = switches()
        medium = MATMUL.fp32_precision
        assert medium != "ieee"
        assert in_two_threads(lambda: None) == ["ieee", "ieee", medium]
        assert switches() == before


def test_what_the_host_sets_while_others_compute_is_pinned_too_and_put_back() -> None:
    def host() -> None:
        MATMUL.fp32_precision = "bf16"

    with attribute(MATMUL, "fp32_precision", "tf32"):
        assert in_two_threads(host) == ["ieee", "ieee", "bf16"]


@pytest.mark.parametrize("host", [True, False, (False, False)], ids=str)
def test_cublas_settings_are_pinned_where_there_is_a_gpu(
    host: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings exist without a GPU as well; only the answer to "is there one" is planted."""
    matmul, library = torch.backends.cuda.matmul, torch.backends.cuda.preferred_blas_library
    name = "allow_bf16_reduced_precision_reduction"
    if isinstance(host, tuple) and not hasattr(matmul, f"{name}_split_k"):
        pytest.skip("this PyTorch has no switch for split sums")
    asked = []
    monkeypatch.setattr(
        torch.backends.cuda, "preferred_blas_library", lambda *new: asked.append(new) or "cublaslt"
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    setattr(matmul, name, host)
    before = guard._blas.bfloat16_sums
    try:
        with pinned(CPU):
            assert guard._blas.bfloat16_sums == (False, True)
        assert guard._blas.bfloat16_sums == before
    finally:
        setattr(matmul, name, True)
    assert asked == [(), (library(),), ("cublaslt",)]


@pytest.mark.parametrize("host", ["flush denormals", "everything"])
def test_a_pass_in_a_thread_of_the_host_keeps_its_bits(host: str) -> None:
    """Flush-to-zero, autocast and the error state belong to a thread."""
    model = load("torch", "float32", 2)
    wanted, results, before = run(model), [], switches()

    def work() -> None:
        with HOSTS[host]():
            inside = switches()
            results.append(run(model))
            results.append(inside == switches())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    model.kernels.close()
    assert_same_bits(results[0], wanted)
    assert results[1]
    assert switches() == before
