"""Golden streams: what Foreword gave when they were recorded it gives today. See golden.py.

A difference is a change of bits. If it was meant, raise NUMERICS_VERSION and record anew
(golden.py); if not, it is a bug.
"""

from __future__ import annotations

import json

import golden
import pytest
from harness import count


def test_the_sampler_gives_the_recorded_tokens_and_logprobs_on_every_machine() -> None:
    known = golden.read("sampler.json")
    streams = golden.sampler_streams()
    assert streams == known
    count(len(streams), len(streams) * golden.POSITIONS)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_greedy_streams_agree_on_every_machine_up_to_a_small_margin(backend: str) -> None:
    known, streams = golden.read("margins.json"), golden.margin_streams(backend)
    assert set(streams) == set(known) or backend == "reference"
    positions = 0
    for name, stream in streams.items():
        clear = min(golden.clear_prefix(known[name]), len(stream["token_ids"]))
        assert stream["token_ids"][:clear] == known[name]["token_ids"][:clear], name
        positions += clear
    assert positions > (60 if backend == "torch" else 15)  # the recorded streams say something
    count(len(streams), positions)


@pytest.mark.parametrize(("backend", "numerics", "isa"), golden.BACKENDS)
def test_streams_and_logit_hashes_of_this_machine(
    backend: str, numerics: str, isa: str | None
) -> None:
    if not golden.here(backend, isa):
        pytest.skip(f"this machine or installation has no {backend} {isa}")
    key = golden.machine_key(backend, numerics, isa)
    known = golden.read("machines.json")
    if key not in known:
        pytest.skip(f"no golden stream recorded for: {key}")
    streams = golden.machine_streams(backend, numerics, isa)
    for name, stream in known[key].items():
        assert streams[name]["token_ids"] == stream["token_ids"], name
        assert streams[name]["rows"] == stream["rows"], f"{name}: bits of logits moved"
    count(len(streams), sum(len(stream["rows"]) for stream in streams.values()))


def test_the_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in golden.FOLDER.glob("*.json")}
    assert set(sizes) == {"sampler.json", "margins.json", "machines.json"}
    assert sum(sizes.values()) < 400_000, json.dumps(sizes)
