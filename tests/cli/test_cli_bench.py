"""foreword bench: what it prints adds up, the last line is the JSON object, bad input is named.

Nothing here looks at how fast anything is: only at how the figures belong together.
"""

from __future__ import annotations

import json
import math
from functools import cache

import numpy as np
import pytest
from test_cli_errors import check

import apparatus
from foreword.bench import perplexity as perplexity_room
from foreword.bench.scale import Scale
from foreword.bench.texts import perplexity_text
from foreword.cli import bench
from foreword.errors import KernelUnavailable
from foreword.kernels.cpu.limits import Limits
from foreword.model.batch import Batch, Segment

try:
    Limits(1, 1)
except KernelUnavailable:
    pytest.skip(
        "the cpu extension, which measures the limits, is not built", allow_module_level=True
    )

SMALL = Scale(
    width_context=16,
    widths=(1, 16, 32, 64),
    contexts=(40,),
    prompt=60,
    batch=3,
    batch_context=20,
    new_tokens=8,
)
PROMISED = {
    "model",
    "numerics",
    "isa",
    "threads",
    "read_gb_s",
    "decode_tokens_per_s",
    "share_of_ceiling",
    "prefill_tokens_per_s",
    "batch8_tokens_per_s",
    "width_ms",
}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "scale", lambda: SMALL)


def close(found, expected):
    assert math.isclose(found, expected, rel_tol=1e-3), (found, expected)  # five digits are printed


@pytest.mark.parametrize("command", ["kernels", "decode"])
@pytest.mark.parametrize(("backend", "numerics"), [("cpu", "bfloat16"), ("torch", "float32")])
def test_the_figures_belong_together(cli, small, tiny_path, command, backend, numerics):
    options = ("--backend", backend, "--numerics", numerics, "--threads", 1, "--repeat", 1)
    ran = cli("bench", command, tiny_path, *options)
    assert (ran.status, ran.err) == (0, "")
    *tables, last = ran.out.splitlines()
    found = json.loads(last)
    assert found.keys() >= PROMISED
    assert (found["model"], found["numerics"]) == (str(tiny_path), numerics)
    assert (found["backend"], found["threads"]) == (backend, 1)
    assert (found["isa"] is not None) == (backend == "cpu")
    assert list(found["width_ms"]) == ["1", "16", "32", "64"]
    assert all(value > 0 for value in found["width_ms"].values())
    for name in ("prefill_tokens_per_s", "batch8_tokens_per_s", "read_gb_s"):
        assert found[name] > 0
    grown = 4 if command == "decode" else 0
    kv_bytes = 2 * 2 * 2 * 16 * (4 if numerics == "float32" else 2)
    ceiling = found["read_gb_s"] * 1e9 / (found["step_bytes"] + grown * kv_bytes)
    close(found["ceiling_tokens_per_s"], ceiling)
    close(found["share_of_ceiling"], found["decode_tokens_per_s"] / ceiling)
    added = 1 / found["decode_at_context"]["40"] - 1 / found["decode_tokens_per_s"]
    multiple = added / (40 * kv_bytes / found["read_gb_s"] / 1e9)
    assert math.isclose(found["attention_of_kv_read"]["40"], multiple, rel_tol=0.5, abs_tol=5)
    assert ("pass_share_of_step" in found) == (command == "decode")
    text = "\n".join(tables)
    for words in ("this machine", "GB/s", "TOP/s", "plain decoding", "prompt of 60", "3 sequences"):
        assert words in text


def test_json_is_the_object_alone(cli, small, tiny_path):
    ran = cli("bench", "kernels", tiny_path, "--repeat", 1, "--threads", 1, "--json")
    assert ran.out.count("\n") == 1
    assert ran.json["model"] == str(tiny_path)


def test_what_does_not_fit_the_model_is_said_and_null(cli, monkeypatch, tiny_path):
    monkeypatch.setattr(bench, "scale", lambda: Scale(width_context=90, new_tokens=8))
    ran = cli("bench", "kernels", tiny_path, "--repeat", 1, "--threads", 1)
    found = json.loads(ran.out.splitlines()[-1])
    assert (found["prefill_tokens_per_s"], found["batch8_tokens_per_s"]) == (None, None)
    assert list(found["width_ms"]) == ["1", "2", "4", "8", "12", "16", "24", "32"]
    assert found["decode_at_context"] == {}
    for words in ("context 700", "context 4096", "width 128", "a prompt of 1000", "8 sequences"):
        assert f"too short: {words}" in ran.err


def test_quantised_at_load_the_ceiling_counts_a_byte_a_weight(cli, small, tiny_path):
    options = ("--backend", "cpu", "--threads", 1, "--repeat", 1, "--json")
    quantised = ("--quantization", "int8", "--numerics", "a8")
    found = cli("bench", "kernels", tiny_path, *options, *quantised).json
    rows = 2 * (64 + 32 + 32 + 64 + 128 + 128 + 64) + 512
    weights = 2 * 64 * (64 + 32 + 32 + 64 + 3 * 128) + 512 * 64
    norms = 5 * 64
    assert found["step_bytes"] == weights + 4 * rows + 4 * norms
    assert found["quantization"] == "int8"


def test_other_tokens_for_the_same_prompt_end_the_run(cli, small, tiny_path, monkeypatch):
    from foreword.sample.compiled import CompiledSampler

    choose, calls = CompiledSampler.choose, iter(range(10**6))

    def now_and_then_wrong(self, row, *arguments):
        if next(calls) == 20:
            row = -row
        return choose(self, row, *arguments)

    monkeypatch.setattr(CompiledSampler, "choose", now_and_then_wrong)
    ran = cli("bench", "decode", tiny_path, "--repeat", 1, "--threads", 1)
    check(ran, "other tokens than before", "no figure is reported", "foreword audit")


# -- perplexity -----------------------------------------------------------------------------------

TEXT = (
    "It was the White Rabbit, trotting slowly back again, and looking anxiously about as it went."
)


@cache
def naive_nats(path, ids, window):
    """Each id predicted by a pass of its own over all ids before it in its window."""
    from foreword.build import make_store
    from foreword.llm import LLM

    llm = LLM(str(path), backend="reference", speculative_config={"method": "none"})
    store = make_store(llm.built.config, llm.built.checkpoint, 256)
    nats = []
    for place in range(len(ids)):
        before = ids[place // window * window : place]
        if before:
            segment = Segment.chain(before, np.arange(1, len(before) + 1))
            (row,) = llm.built.engine.parts.model.forward(Batch.of([segment]), store)
            shifted = row.astype(np.float64) - row.max()
            nats.append(math.log(np.exp(shifted).sum()) - shifted[ids[place]])
    return nats


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_perplexity_is_that_of_one_pass_per_token(cli, tiny_path, tmp_path, monkeypatch, rows):
    monkeypatch.setattr(perplexity_room, "_ROWS", rows)
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    options = ("--text", file, "--tokens", 70, "--window", 32, "--backend", "reference")
    found = cli("bench", "perplexity", tiny_path, *options, "--json").json
    nats = naive_nats(tiny_path, tuple(TEXT.encode())[:70], 32)
    assert found["tokens"] == len(nats) == 31 + 31 + 5
    assert found["windows"] == 3
    assert math.isclose(found["nats_per_token"], sum(nats) / len(nats), rel_tol=1e-12)
    assert math.isclose(found["perplexity"], math.exp(sum(nats) / len(nats)), rel_tol=1e-12)


def test_perplexity_reads_the_shipped_text_by_default(cli, tiny_path):
    ran = cli("bench", "perplexity", tiny_path, "--tokens", 100, "--window", 128)
    last = json.loads(ran.out.splitlines()[-1])
    assert last["text"] == "alice.txt"
    assert last["tokens"] == 99
    assert "perplexity" in ran.out.splitlines()[0]
    text = perplexity_text()
    assert text.isascii()
    assert len(text) > 4096 * 5
    assert "\n\n\n" not in text


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kernels", "--repeat", 0), ("--repeat", ">= 1", "got 0")),
        (("decode", "--backend", "abacus"), ("abacus", "reference")),
        (("decode", "--numerics", "float8"), ("numerics", "float8", "bfloat16")),
        (("kernels", "--backend", "torch", "--isa", "amx"), ("isa", "backend cpu")),
        (("kernels", "--backend", "cpu", "--isa", "z80"), ("z80", "portable")),
        (("perplexity", "--tokens", 10**6), ("tokens", "1000000", "--text")),
        (("perplexity", "--window", 1, "--tokens", 9), ("--window", "got 1")),
        (("perplexity", "--window", 129, "--tokens", 9), ("--window", "128", "got 129")),
        (("perplexity", "--window", 64, "--tokens", 1), ("nothing to predict",)),
        (("perplexity", "--text", "no/such/file"), ("no/such/file", "cannot be read")),
    ],
)
def test_errors_name_the_input(cli, small, tiny_path, words, said):
    command, *options = words
    check(cli("bench", command, tiny_path, *options), *said)


def test_without_the_extension_no_limit_can_be_measured(cli, small, tiny_path, monkeypatch):
    def missing():
        raise KernelUnavailable("not built")

    monkeypatch.setattr("foreword.bench.session.load_native", missing)
    ran = cli("bench", "kernels", tiny_path, "--backend", "torch")
    check(ran, "limits", "compiled extension", "pip install .")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "kernel"), ("kernel", "bench --help")),
        (("bench", "kernels", "--repeat", "often"), ("--repeat", "'often'")),
        (("bench", "decode", "--drafter", "ngram"), ("unknown option --drafter",)),
    ],
)
def test_usage_errors(cli, words, said):
    check(cli(*words), *said, status=2)


def test_a_model_too_short_for_any_figure_is_refused(cli):
    short = apparatus.tiny_checkpoint(max_position=32)
    check(cli("bench", "kernels", short), "context of 32", "64 tokens", status=1)
