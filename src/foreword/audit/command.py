"""`foreword audit`: decides what to cover, runs it, says what was covered and what differed.

Status 0: identical. Status 1: a difference, or a receipt that could not be re-derived. The last
line on stdout is the verdict; with --json stdout is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from foreword import build, machine
from foreword.audit.cases import SAMPLINGS, Case, make_cases
from foreword.audit.grid import Axes, all_pairs, covering_array
from foreword.audit.laboratory import Laboratory
from foreword.audit.replay import Replayed, read_records, replay
from foreword.audit.run import Report, Step, audit
from foreword.audit.scripts import SCRIPTS
from foreword.audit.settings import QUICK, THOROUGH, Setting
from foreword.build import NUMERICS_VERSION
from foreword.config import CacheConfig, EngineConfig, SpeculativeConfig
from foreword.errors import ConfigError, RequestError
from foreword.sample.noise import fresh_seed

MAX_TOKENS = {True: 10, False: 32}  # output tokens of a request, by --quick


class AuditOptions(Protocol):
    """What the command line gives. drafters: names joined by commas, None = all."""

    @property
    def model(self) -> str: ...
    @property
    def quick(self) -> bool: ...
    @property
    def replay(self) -> Path | None: ...
    @property
    def prompt(self) -> list[str] | None: ...
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
    def threads(self) -> int | None: ...
    @property
    def drafters(self) -> str | None: ...
    @property
    def draft_model(self) -> str | None: ...
    @property
    def device(self) -> str: ...
    @property
    def revision(self) -> str | None: ...
    @property
    def adapters(self) -> Mapping[str, str]: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def json(self) -> bool: ...


def run(options: AuditOptions) -> int:
    """Raises ForewordError for input that cannot work."""
    if options.replay is not None:
        return _replay(options, options.replay)
    axes = axes_for(options.quick, options.drafters)
    settings = [Setting.of(row) for row in covering_array(axes)]
    seed = fresh_seed() if options.seed is None else options.seed
    config = EngineConfig(
        model=options.model,
        revision=options.revision,
        numerics=options.numerics,
        quantization=options.quantization,
        cache=CacheConfig(dtype=options.kv_cache_dtype),
        backend=options.backend,
        isa=options.isa,
        device=options.device,
        threads=options.threads,
        adapters=dict(options.adapters),
        speculative=SpeculativeConfig(model=options.draft_model),
    )
    progress = _progress if sys.stderr.isatty() and not options.json else None
    laboratory = Laboratory(config, progress)
    try:
        cases = _cases(laboratory, options, seed)
        report = audit(laboratory, cases, settings, progress=progress)
    finally:
        laboratory.close()
    head: dict[str, Any] = {
        "model": options.model,
        "sha256": laboratory.checkpoint.fingerprint(),
        "backend": laboratory.config.backend,
        "isa": laboratory.isa,
        "numerics": laboratory.config.numerics,
        "quantization": options.quantization,
        "kv_cache_dtype": options.kv_cache_dtype,
        "numerics_version": NUMERICS_VERSION,
        "machine": machine.machine_type(),
        "seed": seed,
    }
    if laboratory.adapters.loaded:
        head["adapters"] = {one.name: one.sha256 for one in laboratory.adapters.loaded}
    if options.json:
        print(json.dumps(as_data(head, axes, settings, report), indent=2))
    else:
        print("\n".join([*covered(head, axes, settings, report), verdict(report)]))
    return 0 if report.identical else 1


PROVIDED = {"own_kv", "layers"}  # by the laboratory


def axes_for(quick: bool, drafters: str | None) -> Axes:
    """Every drafter of the folder that needs no files of its own, and the scripted ones."""
    honest = [name for name in build.names("draft") if name != "scripted"]
    honest = [name for name in honest if build.member("draft", name).needs <= PROVIDED]
    known = sorted(honest, key=lambda name: (name != "none", name)) + list(SCRIPTS)
    chosen = [name for name in known if not (quick and name == "anti")]
    if drafters is not None:
        chosen = [name.strip() for name in drafters.split(",") if name.strip()]
        for name in chosen:
            if name not in known:
                raise ConfigError(f"--drafters: no {name!r}; there is: {', '.join(known)}")
        if not chosen:
            raise ConfigError(f"--drafters is empty; choose from: {', '.join(known)}")
    return {**(QUICK if quick else THOROUGH), "drafter": tuple(dict.fromkeys(chosen))}


def _cases(laboratory: Laboratory, options: AuditOptions, seed: int) -> list[Case]:
    max_tokens = MAX_TOKENS[options.quick]
    cases = make_cases(
        laboratory.tokenizer.encode,
        options.prompt or (),
        max_tokens=max_tokens,
        context=laboratory.context,
        eos_ids=laboratory.checkpoint.eos_ids,
        seed=seed,
        every=not options.quick,
        compiled=laboratory.grammar,
        adapters={one.name: one.sha256 for one in laboratory.adapters.loaded},
    )
    for case in cases:
        if not 0 < len(case.prompt_ids) <= laboratory.context - max_tokens:
            raise RequestError(
                f"{case.name} has {len(case.prompt_ids)} tokens; an audited prompt has 1 to "
                f"{laboratory.context - max_tokens}",
                "prompt",
            )
    return cases


def covered(head: dict[str, Any], axes: Axes, settings: list[Setting], report: Report) -> list[str]:
    """The table of what was covered, and the differences."""
    lines = [f"{name:<17} {value}" for name, value in head.items()]
    lines.append("")
    lines += [f"{name:<17} {' '.join(map(str, values))}" for name, values in axes.items()]
    lines.append(f"{'sampling':<17} {' '.join(SAMPLINGS)}")
    pairs = sum(1 for _ in all_pairs(axes))
    lines += [
        "",
        f"{'settings':<17} {report.num_settings} of {len(settings)}; "
        f"they hold all {pairs} pairs of values of two axes",
        f"{'requests':<17} {report.num_cases} different, each decoded plainly and alone first",
        f"{'compared':<17} {report.num_outputs} outputs, {report.num_positions} tokens, "
        f"{report.num_logprobs} logprobs, bit for bit",
        f"{'on the way':<17} {report.num_drafted} drafts verified, {report.num_accepted} accepted, "
        f"{report.num_preemptions} preemptions, {report.num_prefix_hits} tokens found in prefix "
        f"caches, {report.num_passes} passes",
        "",
    ]
    lines += [f"streams: {fault}" for fault in report.faults]
    lines += [str(difference) for difference in report.differences]
    return lines


def verdict(report: Report) -> str:
    counts = f"{report.num_outputs} outputs under {report.num_settings} settings"
    if report.identical:
        return (
            f"identical: {counts}, {report.num_positions} tokens and {report.num_logprobs} "
            f"logprobs are bit for bit those of plain decoding"
        )
    kinds = [difference.verdict for difference in report.differences]
    named = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    named += [f"{len(report.faults)} faults of the random streams"] if report.faults else []
    return f"different: {counts}: {', '.join(named)}"


def as_data(
    head: dict[str, Any], axes: Axes, settings: list[Setting], report: Report
) -> dict[str, Any]:
    return {
        **head,
        "identical": report.identical,
        "verdict": verdict(report),
        "axes": {name: list(values) for name, values in axes.items()},
        "settings": [asdict(setting) for setting in settings[: report.num_settings]],
        **asdict(report),
    }


def _progress(what: str, done: int, total: int) -> None:
    """One line on a terminal, written over."""
    end = "\n" if done >= total else ""
    print(f"\r{what}: {done}/{total}\x1b[K", end=end, file=sys.stderr, flush=True)


def _replay(options: AuditOptions, path: Path) -> int:
    records = read_records(path)
    prompt = options.prompt[0] if options.prompt else None
    progress: Step | None = _progress if sys.stderr.isatty() and not options.json else None
    outcomes: list[Replayed] = []
    for outcome in replay(
        options.model,
        records,
        prompt,
        options.revision,
        options.threads,
        progress,
        options.adapters,
    ):
        outcomes.append(outcome)
        if not options.json:
            for note in outcome.notes:
                print(f"{outcome.name}: note: {note}")
            print(f"{outcome.name}: {outcome.problem or 'identical'}")
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    tokens = sum(outcome.num_tokens for outcome in outcomes if outcome.problem is None)
    text = (
        f"different: {len(failed)} of {len(outcomes)} results were not re-derived"
        if failed
        else f"identical: {len(outcomes)} results re-derived by plain decoding, {tokens} tokens"
    )
    if options.json:
        data = {"identical": not failed, "verdict": text, "outputs": [asdict(o) for o in outcomes]}
        print(json.dumps(data, indent=2))
    else:
        print(text)
    return 1 if failed else 0
