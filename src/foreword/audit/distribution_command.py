"""`foreword audit --distribution`: what to measure, the tables, the verdict.

Status 0: what promises the model's distribution has it. Status 1: a bias was found. A mode that
promises nothing is measured, not judged. The last line on stdout is the verdict; with --json stdout
is one JSON object.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from foreword import acceptance, machine
from foreword.audit.cases import TEXTS
from foreword.audit.distribution import (
    ALPHA,
    POWER,
    Measured,
    Mode,
    Place,
    Scorer,
    Texts,
    measure,
    visit,
    write,
)
from foreword.config import read_acceptance
from foreword.errors import ConfigError, RequestError
from foreword.families import names
from foreword.llm import LLM
from foreword.model.weights.open import open_checkpoint
from foreword.sample.noise import derive, fresh_seed
from foreword.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Size:
    """places: of a prompt. draws: at each place, in each mode. samples: texts of a prompt."""

    places: int
    draws: int
    samples: int
    max_tokens: int


BATCH, NODES = 32, 6  # requests at once, draft nodes for each
ROWS = 1024  # of a pass: prompts that begin must leave room for drafts
CONTEXT = 1024  # positions a measured request may use at most
SIZES = {True: Size(2, 200, 2, 16), False: Size(4, 500, 4, 48)}  # by --quick


class DistributionOptions(Protocol):
    """What the command line gives. drafters: one name here, None = model or auto."""

    @property
    def model(self) -> str: ...
    @property
    def quick(self) -> bool: ...
    @property
    def prompt(self) -> list[str] | None: ...
    @property
    def prompts(self) -> Path | None: ...
    @property
    def acceptance(self) -> list[str] | None: ...
    @property
    def scorer(self) -> str | None: ...
    @property
    def temperature(self) -> float | None: ...
    @property
    def draws(self) -> int | None: ...
    @property
    def drafters(self) -> str | None: ...
    @property
    def draft_model(self) -> str | None: ...
    @property
    def numerics(self) -> str | None: ...
    @property
    def quantization(self) -> str | None: ...
    @property
    def kv_cache_dtype(self) -> str: ...
    @property
    def backend(self) -> str | None: ...
    @property
    def isa(self) -> str | None: ...
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int | None: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def replay(self) -> Path | None: ...
    @property
    def json(self) -> bool: ...


def run(options: DistributionOptions) -> int:
    """Raises ForewordError for input that cannot work."""
    if options.replay is not None:
        raise ConfigError("--replay re-derives results, --distribution measures; give one of them")
    prompts = read_prompts(options.prompt, options.prompts)
    scorer = None if options.scorer is None else load_scorer(options.scorer)
    size = SIZES[options.quick]
    draws = size.draws if options.draws is None else options.draws
    if draws < 1:
        raise ConfigError(f"--draws must be >= 1, got {draws}")
    temperature = 1.0 if options.temperature is None else options.temperature
    base = SamplingParams(temperature=temperature).resolve({})
    wanted = [read_acceptance(text) for text in options.acceptance or ()]
    seed = fresh_seed() if options.seed is None else options.seed
    progress = _progress if sys.stderr.isatty() and not options.json else None
    with open_llm(options) as llm:
        modes, left_out = choose_modes(llm, base, wanted)
        ids = [llm.tokenizer.encode(text) for text in prompts]
        room = llm.built.context - size.max_tokens
        for text, encoded in zip(prompts, ids, strict=True):
            if not 0 < len(encoded) <= room:
                raise RequestError(
                    f"a prompt has {len(encoded)} tokens, it must have 1 to {room}: {text[:40]!r}",
                    "prompt",
                )
        places = visit(llm, ids, base, size.places, derive(seed, 1))
        found = [measure(llm, places, mode, draws, derive(seed, 2), progress) for mode in modes]
        texts = write(llm, prompts, modes, size.samples, size.max_tokens, derive(seed, 3), scorer)
        head = {
            "model": options.model,
            "sha256": llm.built.fingerprint,
            "backend": llm.built.backend,
            "numerics": llm.built.numerics,
            "machine": machine.machine_type(),
            "drafter": llm.engine.parts.drafter.name,
            "draft_model": options.draft_model,
            "temperature": temperature,
            "prompts": len(prompts),
            "places": len(places),
            "draws": draws,
            "seed": seed,
        }  # fmt: skip
    biased = [one.name for one in found if one.keeps and not one.fits_law]
    if options.json:
        print(json.dumps(as_data(head, places, found, texts, left_out, biased), indent=2))
    else:
        print("\n".join([*lines(head, found, texts, left_out), verdict(found, biased)]))
    return 1 if biased else 0


def open_llm(options: DistributionOptions) -> LLM:
    """Many requests at once, each with drafts whether they pay or not, from a drafter that does not
    learn from one draw for the next."""
    method = options.drafters or ("auto" if options.draft_model is None else "model")
    if "," in method:
        raise ConfigError(f"--distribution measures with one drafter, got --drafters {method}")
    plan: dict[str, Any] = {
        "method": method,
        "learning": False,
        "tree": "best_first",
        "num_speculative_tokens": NODES,
        "node_budget": NODES * BATCH,
    }
    if options.draft_model is not None:
        plan["model"] = options.draft_model
    shape = open_checkpoint(options.model, options.revision).config
    return LLM(
        options.model,
        speculative_config=plan,
        revision=options.revision,
        numerics=options.numerics,
        quantization=options.quantization,
        backend=options.backend,
        isa=options.isa,
        device=options.device,
        threads=options.threads,
        kv_cache_dtype=options.kv_cache_dtype,
        max_num_seqs=BATCH,
        max_num_batched_tokens=ROWS,
        max_model_len=min(CONTEXT, shape.max_position),
        generation_config="none",
    )


def read_prompts(given: list[str] | None, path: Path | None) -> list[str]:
    """Those of --prompt and of the file's lines; the built-in ones where there are none."""
    found = list(given or ())
    if path is not None:
        try:
            found += [
                line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()
            ]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--prompts {path}: cannot be read as text ({error})") from None
        if not found:
            raise ConfigError(f"--prompts {path}: holds no prompt; write one on each line")
    return found or list(TEXTS.values())


def load_scorer(text: str) -> Scorer:
    """The function behind MODULE:FUNCTION."""
    module, _, name = text.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--scorer {text}: no such function ({error}); give MODULE:FUNCTION"
        ) from None
    if not callable(found):
        raise ConfigError(f"--scorer {text}: is not a function; give MODULE:FUNCTION")
    return cast("Callable[[str, str], float]", found)


def choose_modes(
    llm: LLM, base: SamplingParams, wanted: SequenceOf[tuple[str, dict[str, Any]]]
) -> tuple[list[Mode], list[str]]:
    """Exact, then those asked for, each once; or all that can run, and why the others cannot."""
    modes, left_out = [Mode("exact", base, True)], []
    asked = wanted or [(name, {}) for name in names("accept")]
    for name, given in asked:
        if name == "exact":
            continue
        try:
            params = _params(base, name, given)
            module, _ = acceptance.checked(params, llm.engine.parts.drafter)
        except RequestError as error:
            if wanted:
                raise
            left_out.append(str(error))
            continue
        shown = ",".join(f"{key}={value}" for key, value in given.items())
        modes.append(Mode(f"{name}:{shown}" if shown else name, params, module.keeps))
    return modes, left_out


def _params(base: SamplingParams, name: str, given: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        temperature=base.temperature, acceptance=name, acceptance_options=given or None
    ).resolve({})


def lines(
    head: dict[str, Any], found: list[Measured], texts: list[Texts], left_out: list[str]
) -> list[str]:
    """The tables."""
    out = [f"{name:<17} {value}" for name, value in head.items() if value is not None]
    out += [f"{'left out':<17} {reason}" for reason in left_out]
    out += [
        "",
        f"next tokens: {head['draws']} seeds at each of {head['places']} positions; total "
        "variation from the exact probabilities;",
        f"  'chance' is what so many draws from the right law show on average; alpha {ALPHA:g}; "
        f"'visible' is the bias found with power {POWER:g};",
        "  'drafted' is the share of draws at which a draft stood",
        "",
        f"{'acceptance':<24} {'TV':>7} {'largest':>8} {'chance':>7} {'chi-square':>11} {'df':>6} "
        f"{'p':>8} {'visible':>8} {'drafted':>8}",
    ]
    for one in found:
        fit = one.whole
        out.append(
            f"{one.name:<24} {mean(one.variation):7.4f} {max(one.variation):8.4f} "
            f"{mean(one.floor):7.4f} {fit.statistic:11.1f} {fit.freedom:6d} {fit.p_value:8.2g} "
            f"{one.visible:8.3f} {one.drafted / fit.num_draws:8.2f}"
        )
    scored = texts[0].score is not None
    out += [
        "",
        f"texts: {texts[0].num_texts} in each mode, with the seeds of exact mode",
        "",
        f"{'acceptance':<24} {'tokens/pass':>11} {'agreement':>9} {'logprob':>8} "
        f"{'difference':>18}" + (f" {'score':>8} {'difference':>18}" if scored else ""),
    ]
    for text in texts:
        row = (
            f"{text.name:<24} {text.acceptance_length:11.2f} {text.agreement:9.2f} "
            f"{text.logprob:8.3f} {text.logprob_difference:+8.3f} +- {text.logprob_error:6.3f}"
        )
        if text.score is not None:
            row += f" {text.score:8.3f} {text.score_difference:+8.3f} +- {text.score_error:6.3f}"
        out.append(row)
    return [*out, ""]


def verdict(found: list[Measured], biased: list[str]) -> str:
    if biased:
        return f"biased: {', '.join(biased)}: what is drawn does not have the model's distribution"
    kept = [one.name for one in found if one.keeps]
    rest = [one.name for one in found if not one.keeps]
    exact = found[0]
    text = (
        f"no bias found: draws of {', '.join(kept)} fit the exact probabilities (a total variation "
        f"of {exact.visible:.3f} at every position would have been found with power {POWER:g})"
    )
    return text + (f"; approximate, measured only: {', '.join(rest)}" if rest else "")


def as_data(
    head: dict[str, Any],
    places: list[Place],
    found: list[Measured],
    texts: list[Texts],
    left_out: list[str],
    biased: list[str],
) -> dict[str, Any]:
    return {
        **head,
        "biased": biased,
        "verdict": verdict(found, biased),
        "alpha": ALPHA,
        "power": POWER,
        "left_out": left_out,
        "positions": [len(place.prompt_ids) for place in places],
        "distribution": [
            {
                "acceptance": one.name,
                "exactness": one.exactness,
                "keeps_distribution": one.keeps,
                "total_variation": one.variation,
                "expected_by_chance": one.floor,
                "chi_square": finite(one.whole.statistic),
                "freedom": one.whole.freedom,
                "p_value": one.whole.p_value,
                "drafted": one.drafted / one.whole.num_draws,
                "visible_total_variation": one.visible,
            }
            for one in found
        ],
        "texts": [{key: finite(value) for key, value in asdict(text).items()} for text in texts],
    }


def finite(value: Any) -> Any:
    """JSON has no infinity (an outcome that cannot be) and no NaN (the error of one text)."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _progress(what: str, done: int, total: int) -> None:
    """One line on a terminal, written over."""
    end = "\n" if done >= total else ""
    print(f"\r{what}: {done}/{total}\x1b[K", end=end, file=sys.stderr, flush=True)
