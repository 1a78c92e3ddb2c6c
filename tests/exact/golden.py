"""What the golden files hold and how it is computed.

    PYTHONPATH=src:tests python tests/exact/golden.py            records anew
    PYTHONPATH=src:tests python tests/exact/golden.py cpu        backend cpu's part alone, for when
                                                                 a kernel was meant to move bits

    sampler.json    token streams of the sampler on rows of exact binary fractions: no matrix
                    product and no C library in them, so they are the same on every machine
    margins.json    greedy streams of T in float32 with the margin of the two best tokens: every
                    machine and backend agrees up to the first small margin
    machines.json   by machine type, torch version, backend and numerics: streams of T, and a hash
                    of the logit row at every position; no bit may move unless NUMERICS_VERSION
                    does. Backend cpu: by instruction set, whatever the machine; T quantised to int4
                    in a16 and a8

A commit marked as a refactor may not change any of them.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import Job, Rig, plain_with, prompt, rig

from foreword import machine
from foreword.build import NUMERICS_VERSION
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.backend import ISAS, load_native
from foreword.kernels.ops import QUANTISED
from foreword.sample.noise import philox
from foreword.sample.sampler import GumbelSampler
from foreword.types import Choice, Request, SamplingParams

FOLDER = Path(__file__).resolve().parents[1] / "data" / "golden"
SMALL_MARGIN = 1e-3  # far above what another machine's rounding moves a float32 logit of T
BACKENDS = [
    ("torch", "float32", None),
    ("torch", "bfloat16", None),
    ("reference", "float32", None),
    *(("cpu", numerics, isa) for isa in ISAS for numerics in ("float32", "bfloat16", "a16", "a8")),
]
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "hot": {"temperature": 1.7},
    "top_p": {"temperature": 1.0, "top_p": 0.9},
    "top_k": {"temperature": 0.7, "top_k": 12},
    "min_p": {"temperature": 1.2, "min_p": 0.05},
    "all": {"temperature": 0.9, "top_p": 0.8, "top_k": 40, "min_p": 0.01},
}
SEEDS = (0, 1, 2**63, 2**64 - 1)
POSITIONS, VOCAB = 24, 600


def exact_row(number: int) -> np.ndarray:
    """float32 [VOCAB] in [0, 16), every value a multiple of 1/4096 from plain-integer Philox."""
    blocks = (philox((number, 99), (index, 0, 0, 0)) for index in range(VOCAB // 4))
    words = [word >> 48 for block in blocks for word in block]
    return (np.array(words, dtype=np.float64) / 4096).astype(np.float32)


def sampler_streams() -> dict[str, Any]:
    """By sampling and seed: the tokens, and a hash of the logprobs."""
    rows = [exact_row(number) for number in range(POSITIONS)]
    sampler, streams = GumbelSampler(), {}
    for name, fields in SAMPLINGS.items():
        params = SamplingParams(logprobs=3, **fields).resolve({})
        for seed in SEEDS:
            state = sampler.begin(Request("", (), params, seed))
            choices = [sampler.choose(row, params, state, at) for at, row in enumerate(rows)]
            streams[f"{name} {seed}"] = {
                "token_ids": [choice.token_id for choice in choices],
                "logprobs_sha256": logprob_hash(choices),
            }
    return streams


def logprob_hash(choices: list[Choice]) -> str:
    entries = [choice.logprobs for choice in choices]
    text = [
        (entry.logprob.hex(), [(token, value.hex()) for token, value in entry.top])
        for entry in entries
        if entry is not None
    ]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def jobs() -> dict[str, Job]:
    return {
        "short greedy": Job(prompt(3, 1), 32),
        "long greedy": Job(prompt(140, 2), 24),
        "sampled": Job(prompt(20, 3), 32, temperature=1.0, seed=5),
        "filtered": Job(prompt(9, 4), 32, temperature=0.8, top_p=0.9, top_k=50, seed=6),
    }


def greedy_jobs() -> dict[str, Job]:
    return {f"prompt of {n}": Job(prompt(n, 50 + n), 24) for n in (1, 5, 17, 40, 130)}


def margin_streams(backend: str = "torch") -> dict[str, Any]:
    """Greedy ids of T, and how far ahead each was of the second best. The slow reference backend
    does a part."""
    streams = {}
    for name, job in greedy_jobs().items():
        if backend == "reference":
            if len(job.prompt) > 20:
                continue
            job = replace(job, max_tokens=10)
        result = plain_with(rig(backend=backend), job)
        margins = [
            float.fromhex(top[0][1]) - float.fromhex(top[1][1]) for _, _, top in result.logprobs
        ]
        streams[name] = {
            "token_ids": list(result.token_ids),
            "margins": [round(margin, 6) for margin in margins],
        }
    return streams


class Hashing(GumbelSampler):
    """Notes a short hash of each logit row it chooses from."""

    def __init__(self) -> None:
        self.hashes: list[str] = []

    def choose(self, row: np.ndarray, params: SamplingParams, state: Any, position: int) -> Choice:
        self.hashes.append(hashlib.sha256(row.tobytes()).hexdigest()[:16])
        return super().choose(row, params, state, position)


def here(backend: str, isa: str | None) -> bool:
    """Whether this machine can run it."""
    if backend != "cpu":
        return True
    try:
        return bool(load_native().has_isa(isa))
    except KernelUnavailable:
        return False


@cache
def golden_rig(backend: str, numerics: str, isa: str | None) -> Rig:
    if backend != "cpu":
        return rig(numerics, backend=backend)
    quantization = "int4" if numerics in QUANTISED else None
    return rig(numerics, backend, isa=isa, quantization=quantization, dtype="bfloat16")


def machine_streams(backend: str, numerics: str, isa: str | None = None) -> dict[str, Any]:
    streams = {}
    for name, job in jobs().items():
        if backend == "reference":
            if len(job.prompt) > 20:
                continue
            job = replace(job, max_tokens=8)
        sampler = Hashing()
        result = plain_with(golden_rig(backend, numerics, isa), job, sampler=sampler)
        streams[name] = {"token_ids": list(result.token_ids), "rows": sampler.hashes}
    return streams


def machine_key(backend: str, numerics: str, isa: str | None = None) -> str:
    if backend == "cpu":
        return f"{platform.machine()}, cpu, {isa}, {numerics}, numerics version {NUMERICS_VERSION}"
    return (
        f"{machine.machine_type()}, torch {torch.__version__}, {backend}, {numerics}, "
        f"numerics version {NUMERICS_VERSION}"
    )


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return content


def clear_prefix(stream: dict[str, Any]) -> int:
    """Positions before the first small margin."""
    small = (at for at, margin in enumerate(stream["margins"]) if margin < SMALL_MARGIN)
    return next(small, len(stream["margins"]))


def recorded(only: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if not only:
        yield "sampler.json", sampler_streams()
        yield "margins.json", margin_streams()
    path = FOLDER / "machines.json"
    known = read("machines.json") if path.exists() else {}
    for kind in BACKENDS:
        if here(kind[0], kind[2]) and only in ("", kind[0]):
            known[machine_key(*kind)] = machine_streams(*kind)
    yield "machines.json", known


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in recorded(*sys.argv[1:2]):
        text = json.dumps(content, indent=1, sort_keys=True)
        (FOLDER / name).write_text(text + "\n", encoding="utf-8")
        print(f"{FOLDER / name}: {len(content)} entries")


if __name__ == "__main__":
    main()
