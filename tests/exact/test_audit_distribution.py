"""`foreword audit --distribution`: right modes fit, wrong ones are measured, planted biases caught.

Few draws on a tiny model whose laws are sharpened by temperature; what is proved is that the
machinery sees each kind of fault.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apparatus
from foreword.accept import _ratio
from foreword.audit import distribution, distribution_command
from foreword.audit.distribution import Mode, measure, visit, write
from foreword.audit.distribution_command import Size, run
from foreword.config import read_acceptance
from foreword.errors import ConfigError, RequestError
from foreword.llm import LLM
from foreword.sample import law, noise
from foreword.sample.sampler import GumbelSampler
from foreword.types import SamplingParams

SHARP = 0.5  # temperature
DRAWS = 250
PROMPTS = ["red green red green", "one two three"]


def longest(prompt: str, text: str) -> float:
    """A score for --scorer."""
    return float(len(text))


@dataclass
class Options:
    model: str
    quick: bool = True
    prompt: list[str] | None = None
    prompts: Path | None = None
    acceptance: list[str] | None = None
    scorer: str | None = None
    temperature: float | None = SHARP
    draws: int | None = 60
    drafters: str | None = None
    draft_model: str | None = None
    numerics: str | None = "float32"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    backend: str | None = "torch"
    isa: str | None = None
    device: str = "cpu"
    threads: int | None = 1
    revision: str | None = None
    seed: int | None = 3
    replay: Path | None = None
    json: bool = False


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    plan = {
        "method": "model",
        "model": str(apparatus.drafter_noise(num_layers=1, noise=0.06)),
        "num_speculative_tokens": 2,
        "learning": False,
        "tree": "chain",
        "node_budget": 64,
    }
    with LLM(
        str(apparatus.target(num_layers=1)),
        numerics="float32",
        backend="torch",
        generation_config="none",
        speculative_config=plan,
        threads=1,
        max_num_seqs=32,
        kv_cache_memory=32 << 20,
    ) as loaded:
        loaded.engine.parts = replace(loaded.engine.parts, sampler=GumbelSampler())
        yield loaded  # the specification: mutants break what it is made of


@pytest.fixture(scope="module")
def places(llm: LLM) -> list[distribution.Place]:
    ids = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    return visit(llm, ids, mode("exact").params, 1, 1)


def mode(name: str, keeps: bool = True, **options: Any) -> Mode:
    params = SamplingParams(temperature=SHARP, acceptance=name, acceptance_options=options or None)
    return Mode(name, params.resolve({}), keeps)


def test_exact_mode_fits_its_own_probabilities(llm, places):
    assert [place.prompt_ids for place in places] == [
        tuple(llm.tokenizer.encode(prompt)) for prompt in PROMPTS
    ]
    found = measure(llm, places, mode("exact"), DRAWS, 2)
    assert found.exactness == "exact"
    assert found.fits_law
    assert found.whole.num_draws == DRAWS * len(places)
    assert found.whole.freedom > 5
    assert 0.02 < found.visible < 0.4
    assert np.mean(found.variation) < 2 * np.mean(found.floor)


def test_a_mode_that_keeps_the_distribution_fits_too(llm, places):
    found = measure(llm, places, mode("ratio"), DRAWS, 2)
    assert found.exactness == "approximate: ratio (distribution kept)"
    assert found.fits_law
    assert found.drafted > 0.4 * found.whole.num_draws


def test_a_mode_that_does_not_is_measured_far_off(llm, places):
    """A cascade that never asks the target draws from a random drafter."""
    found = measure(llm, places, mode("cascade", False, rule="chow", alpha=1.0), DRAWS, 2)
    assert not found.fits_law
    assert np.mean(found.variation) > np.mean(found.floor) + 0.1


def colder_noise(patch: pytest.MonkeyPatch) -> None:
    """Noise a third too small: as if every request asked for a lower temperature."""
    gumbel_of = noise.gumbel_of
    patch.setattr("foreword.sample.perturbed.gumbel_of", lambda words: 0.67 * gumbel_of(words))


def noise_ignores_id(patch: pytest.MonkeyPatch) -> None:
    """Every 32 ids share their noise."""
    words = noise.words

    def broken(seed: int, position: int, ids: Any) -> np.ndarray:
        places = np.arange(ids) if isinstance(ids, int) else ids
        return words(seed, position, places // 32)

    patch.setattr(noise, "words", broken)


def unsampled(patch: pytest.MonkeyPatch) -> None:
    """Greedy, whatever the temperature says."""
    choose = GumbelSampler.choose

    def broken(self: Any, row: Any, params: Any, *rest: Any) -> Any:
        return choose(self, row, replace(params, temperature=0.0), *rest)

    patch.setattr(GumbelSampler, "choose", broken)


@pytest.mark.parametrize("mutant", [colder_noise, noise_ignores_id, unsampled])
def test_a_biased_sampler_is_caught(mutant, llm, places, monkeypatch):
    """Faults that every run shares: comparing runs with each other finds none of them."""
    mutant(monkeypatch)
    assert not measure(llm, places, mode("exact"), DRAWS, 2).fits_law


def residual_softmaxed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        _ratio,
        "residual",
        lambda p, q: law.normal(np.exp(np.maximum(p.chances - q.chances, 0.0))),
    )


def drafts_always_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("foreword.accept.ratio.settle", lambda p, drafted, *_: (*drafted, 0)[0])


@pytest.mark.parametrize("mutant", [residual_softmaxed, drafts_always_kept])
def test_a_biased_ratio_test_is_caught(mutant, llm, places, monkeypatch):
    mutant(monkeypatch)
    assert not measure(llm, places, mode("ratio"), DRAWS, 2).fits_law


def test_texts_are_compared_with_exact_mode(llm):
    modes = [mode("exact"), mode("exact"), mode("cascade", False, rule="chow", alpha=1.0)]
    exact, again, other = write(llm, PROMPTS, modes, 2, 12, 5, longest)
    assert exact.num_texts == 4
    assert (again.agreement, again.logprob_difference, again.score_difference) == (1.0, 0.0, 0.0)
    assert again.logprob == exact.logprob < 0
    assert other.agreement < 0.5
    assert other.logprob < exact.logprob - 1.0
    assert other.acceptance_length > exact.acceptance_length
    assert other.score is not None


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(distribution_command.SIZES, True, Size(1, 60, 1, 8))


def test_the_command_says_what_it_saw(small, tmp_path, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("red green red\n\none two\n", encoding="utf-8")
    options = Options(str(apparatus.target(num_layers=1)), prompts=file, drafters="ngram",
                      scorer=f"{__name__}:longest")  # fmt: skip
    assert run(options) == 0
    out = capsys.readouterr().out
    for text in ("ratio", "typical", "conditional", "chance", "visible", "agreement", "score",
                 "'cascade' needs a drafter", "'reward' needs the option scorer"):  # fmt: skip
        assert text in out
    last = out.strip().splitlines()[-1]
    assert last.startswith("no bias found: draws of exact, ratio fit")
    assert "power 0.99" in last
    assert "approximate, measured only: conditional, typical" in last
    assert "identical" not in out


def test_the_command_calls_a_bias_by_name_with_status_1(small, monkeypatch, capsys):
    monkeypatch.setattr("foreword.accept.ratio.settle", lambda p, drafted, *_: 1)
    options = Options(str(apparatus.target(num_layers=1)), acceptance=["ratio"], prompt=["red"],
                      drafters="ngram", json=True)  # fmt: skip
    assert run(options) == 1

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    data = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert data["biased"] == ["ratio"]
    assert data["verdict"].startswith("biased: ratio")
    assert [one["acceptance"] for one in data["distribution"]] == ["exact", "ratio"]
    assert data["alpha"] == 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"acceptance": ["guess"]}, "no acceptance 'guess'"),
        ({"acceptance": ["typical:epsilon"]}, "'epsilon' is not OPTION=VALUE"),
        ({"acceptance": ["cascade"]}, "needs a drafter"),
        ({"drafters": "ngram,suffix"}, "with one drafter"),
        ({"draws": 0}, "--draws must be >= 1"),
        ({"scorer": "nowhere:f"}, "--scorer nowhere:f: no such function"),
        ({"scorer": "math:pi"}, "is not a function"),
        ({"prompts": Path("/nowhere.txt")}, "/nowhere.txt: cannot be read"),
        ({"replay": Path("x")}, "give one of them"),
        ({"prompt": [""]}, "has 0 tokens"),
    ],
)
def test_the_command_names_bad_input(small, change, message):
    options = Options(str(apparatus.target(num_layers=1)), drafters="ngram")
    with pytest.raises((ConfigError, RequestError), match=message):
        run(replace(options, **change))


def test_options_of_an_acceptance_are_read():
    assert read_acceptance("cascade:rule=token,alpha=0.3") == (
        "cascade",
        {"rule": "token", "alpha": 0.3},
    )
