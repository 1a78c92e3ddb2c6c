"""Parts of `foreword bench` that measure nothing: rounds, what fits, what a step must read."""

from __future__ import annotations

import time

import pytest

import apparatus
from foreword.bench.ceiling import weight_bytes
from foreword.bench.report import rounded
from foreword.bench.rounds import interleave
from foreword.bench.scale import Scale
from foreword.bench.texts import free_prompts
from foreword.errors import ConfigError
from foreword.model.weights.open import open_checkpoint
from foreword.model.weights.quantize import quantised
from quantised_files import quantised_gguf


def test_rounds_take_turns_and_the_first_call_does_not_count():
    calls = []

    def case(name, seconds):
        def run():
            calls.append(name)
            time.sleep(0.06)  # long enough to run once a round
            return next(seconds)

        return run

    samples = interleave(
        {"a": case("a", iter([9.0, 3.0, 1.0, 2.0])), "b": case("b", iter([9.0, 5.0, 4.0, 6.0]))}, 3
    )
    assert calls == ["a", "b"] * 4
    assert samples["a"].seconds == [3.0, 1.0, 2.0]
    assert (samples["a"].median, samples["a"].best) == (2.0, 1.0)
    assert (samples["b"].median, samples["b"].best) == (5.0, 4.0)


def test_short_cases_are_repeated_by_the_time_they_take_not_by_what_they_return():
    """A case may return a part of its time, such as a step of many."""
    samples = interleave({"quick": lambda: 1.0, "slow": lambda: (time.sleep(0.06), 1e-9)[1]}, 2)
    assert len(samples["quick"].seconds) == 2 * 20
    assert len(samples["slow"].seconds) == 2


def test_progress_ends_at_the_last_round():
    seen = []
    interleave({"a": lambda: 1.0}, 2, lambda *args: seen.append(args))
    assert seen[0] == ("warming up", 0, 1)
    assert seen[-1] == ("measuring", 2, 2)


def test_a_scale_that_fits_stays_as_it_is():
    scale = Scale()
    assert scale.longest == 4096 + 64
    assert scale.fitted(scale.longest) == (scale, [])


@pytest.mark.parametrize(
    ("room", "contexts", "prompt", "batch", "widths"),
    [
        (4159, (700,), 1000, 8, 12),
        (1000, (700,), None, 8, 12),
        (763, (), None, 8, 12),
        (383, (), None, 8, 11),
        (213, (), None, None, 0),
    ],
)
def test_what_does_not_fit_is_left_out(room, contexts, prompt, batch, widths):
    scale, left_out = Scale().fitted(room)
    assert (scale.contexts, scale.prompt, scale.batch) == (contexts, prompt, batch)
    assert len(scale.widths) == widths
    missing = 2 - len(contexts) + 12 - widths + (prompt is None) + (batch is None)
    assert len(left_out) == missing


def test_no_room_for_decoding_is_an_error():
    with pytest.raises(ConfigError, match="context of 64"):
        Scale().fitted(64)


NORMS = 5 * 64 * 4
LAYERS = 2 * 64 * (64 + 32 + 32 + 64 + 3 * 128)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_a_float_step_reads_the_numbers_as_they_are_run(dtype, size):
    checkpoint = open_checkpoint(str(apparatus.target(dtype=dtype)))
    assert weight_bytes(checkpoint, "float32") == (LAYERS + 512 * 64) * size + NORMS
    assert weight_bytes(checkpoint, "bfloat16") == (LAYERS + 512 * 64) * 2 + NORMS


def test_an_embedding_apart_from_the_head_is_not_read():
    untied = open_checkpoint(str(apparatus.target(tied=False)))
    assert weight_bytes(untied, "float32") == (LAYERS + 512 * 64) * 4 + NORMS


def test_a_quantised_step_reads_the_bytes_of_the_file(tmp_path, tiny_path):
    path = quantised_gguf(tmp_path / "tiny.gguf", tiny_path, "Q8_0")
    checkpoint = open_checkpoint(str(path))
    matrices = [name for name in checkpoint.names() if len(checkpoint.shape(name)) == 2]
    stored = sum(checkpoint.num_bytes(name) for name in matrices)
    assert stored == (LAYERS + 512 * 64) // 32 * 34
    for numerics in ("a8", "a16"):
        assert weight_bytes(checkpoint, numerics) == stored + NORMS
    assert weight_bytes(checkpoint, "bfloat16") == (LAYERS + 512 * 64) * 2 + NORMS


def test_quantised_at_load_counts_half_a_byte_and_the_scales(tiny_path):
    checkpoint = quantised(open_checkpoint(str(tiny_path)), "int4")
    expected = (LAYERS + 512 * 64) // 2 + (LAYERS + 512 * 64) // 32 * 4
    assert weight_bytes(checkpoint, "a8") == expected + NORMS


def test_five_digits():
    assert rounded({"a": 1.23456789, "b": {"c": 123456.7}, "d": "x", "e": 3, "f": None}) == {
        "a": 1.2346,
        "b": {"c": 123460.0},
        "d": "x",
        "e": 3,
        "f": None,
    }


def test_eight_free_prompts_ship():
    prompts = free_prompts()
    assert len(set(prompts)) == 8
    assert all(len(prompt) > 300 for prompt in prompts)
