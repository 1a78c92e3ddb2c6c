"""The options that become a request's SamplingParams, each under its name there.

A field left at None is not passed on: defaults live in the library.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from foreword.cli.numbers import decimal, whole_number
from foreword.config import read_acceptance
from foreword.errors import RequestError
from foreword.params import SamplingParams

_SAMPLING, _PENALTIES, _ENDS = "Sampling", "Penalties and masks", "Where the text ends"
_ANSWERS = "Answers"
RENAMED = {
    "allowed_token_id": "allowed_token_ids",
    "bad_word": "bad_words",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "mirostat": "mirostat_mode",
    "stop_token_id": "stop_token_ids",
}


def _number(name: str, help: str, panel: str = _SAMPLING) -> Any:
    return typer.Option(name, parser=whole_number, metavar="N", help=help, rich_help_panel=panel)


def _decimal(name: str, help: str, panel: str = _SAMPLING) -> Any:
    return typer.Option(name, parser=decimal, metavar="X", help=help, rich_help_panel=panel)


def _text(name: str, help: str, panel: str, metavar: str = "S") -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel, metavar=metavar)


def _flag(name: str, help: str, panel: str) -> Any:
    return typer.Option(name, help=help, rich_help_panel=panel)


def bias(text: str) -> tuple[int, float]:
    """`42=-1.5` -> (42, -1.5). Raises RequestError."""
    token, _, number = text.partition("=")
    try:
        return int(token), float(number)
    except ValueError:
        raise RequestError(f"{text!r} is not a bias; write it like 42=-1.5", "logit_bias") from None


@dataclass(slots=True)
class SamplingOptions:
    temperature: Annotated[float | None, _decimal("--temperature", "0 = greedy.")] = None
    top_p: Annotated[float | None, _decimal("--top-p", "In (0, 1].")] = None
    top_k: Annotated[int | None, _number("--top-k", "0 or -1 = off.")] = None
    min_p: Annotated[float | None, _decimal("--min-p", "In [0, 1].")] = None
    typical_p: Annotated[float | None, _decimal("--typical-p", "In (0, 1], 1 = off.")] = None
    xtc_probability: Annotated[
        float | None, _decimal("--xtc-probability", "Chance to leave out the likeliest; 0 = off.")
    ] = None
    xtc_threshold: Annotated[
        float | None, _decimal("--xtc-threshold", "XTC: what counts as likely.")
    ] = None
    mirostat: Annotated[int | None, _number("--mirostat", "2 = on.")] = None
    mirostat_tau: Annotated[
        float | None, _decimal("--mirostat-tau", "Surprise aimed at, in bits.")
    ] = None
    mirostat_eta: Annotated[float | None, _decimal("--mirostat-eta", "How fast it learns.")] = None
    sampler: Annotated[
        str | None,
        _text("--sampler", "gumbel, or arithmetic: --n samples spread out.", _SAMPLING, "NAME"),
    ] = None
    acceptance: Annotated[
        str | None,
        _text(
            "--acceptance",
            "exact; typical, ... let other tokens through and say so.",
            _SAMPLING,
            "NAME[:OPTION=X,...]",
        ),
    ] = None
    seed: Annotated[
        int | None, _number("--seed", "Of every request. Unset: drawn and reported.")
    ] = None

    repetition_penalty: Annotated[
        float | None, _decimal("--repetition-penalty", "Prompt and output; 1 = off.", _PENALTIES)
    ] = None
    presence_penalty: Annotated[
        float | None, _decimal("--presence-penalty", "Of what was written; 0 = off.", _PENALTIES)
    ] = None
    frequency_penalty: Annotated[
        float | None, _decimal("--frequency-penalty", "Times how often; 0 = off.", _PENALTIES)
    ] = None
    dry_multiplier: Annotated[
        float | None, _decimal("--dry-multiplier", "Of repeated passages; 0 = off.", _PENALTIES)
    ] = None
    dry_base: Annotated[
        float | None, _decimal("--dry-base", "DRY: growth with the length.", _PENALTIES)
    ] = None
    dry_allowed_length: Annotated[
        int | None, _number("--dry-allowed-length", "DRY: repeats up to this are free.", _PENALTIES)
    ] = None
    dry_penalty_last_n: Annotated[
        int | None, _number("--dry-penalty-last-n", "DRY: how far back; -1 = all.", _PENALTIES)
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _text("--logit-bias", "Added to a token's logit. Repeatable.", _PENALTIES, "ID=X"),
    ] = None
    allowed_token_id: Annotated[
        list[int] | None, _number("--allowed-token-id", "Nothing else. Repeatable.", _PENALTIES)
    ] = None
    dry_sequence_breaker: Annotated[
        list[str] | None,
        _text("--dry-sequence-breaker", "DRY: ends a repeat. Repeatable.", _PENALTIES),
    ] = None
    bad_word: Annotated[
        list[str] | None, _text("--bad-word", "May not come. Repeatable.", _PENALTIES)
    ] = None

    max_tokens: Annotated[
        int | None,
        _number("--max-tokens", "Output tokens at most; generate: 256, chat: no limit.", _ENDS),
    ] = None
    min_tokens: Annotated[int | None, _number("--min-tokens", "No end before so many.", _ENDS)] = (
        None
    )
    stop: Annotated[
        list[str] | None, _text("--stop", "Text that ends the answer. Repeatable.", _ENDS)
    ] = None
    stop_token_id: Annotated[
        list[int] | None, _number("--stop-token-id", "Id that ends it. Repeatable.", _ENDS)
    ] = None
    include_stop_str_in_output: Annotated[
        bool, _flag("--include-stop-str-in-output", "Keep the stop string.", _ENDS)
    ] = False
    ignore_eos: Annotated[bool, _flag("--ignore-eos", "Go on after end tokens.", _ENDS)] = False
    time_limit: Annotated[
        float | None, _decimal("--time-limit", "Seconds; then the text is cut.", _ENDS)
    ] = None


@dataclass(slots=True)
class ReportOptions:
    """How many answers there are, and what is said of them."""

    n: Annotated[int, _number("--n", "Samples of each prompt.", _ANSWERS)] = 1
    best_of: Annotated[
        int | None, _number("--best-of", "Make so many, show the --n most likely.", _ANSWERS)
    ] = None
    logprobs: Annotated[
        int | None, _number("--logprobs", "With --json: the N highest too.", _ANSWERS)
    ] = None
    logprobs_mode: Annotated[
        str | None, _text("--logprobs-mode", "raw or processed.", _ANSWERS, "NAME")
    ] = None
    prompt_logprobs: Annotated[
        int | None, _number("--prompt-logprobs", "With --json: of the prompt.", _ANSWERS)
    ] = None


def sampling_params(
    options: SamplingOptions, report: ReportOptions | None = None, **more: Any
) -> SamplingParams:
    """Raises RequestError for a value out of range."""
    given = {item.name: getattr(options, item.name) for item in fields(options)}
    if report is not None:
        given |= {item.name: getattr(report, item.name) for item in fields(report)}
    if given["acceptance"] is not None:
        given["acceptance"], chosen = read_acceptance(given["acceptance"])
        given["acceptance_options"] = chosen or None
    max_tokens = given.pop("max_tokens")
    if given["logit_bias"] is not None:
        given["logit_bias"] = dict(map(bias, given["logit_bias"]))
    set_ = {RENAMED.get(name, name): value for name, value in given.items() if value is not None}
    return SamplingParams(max_tokens=max_tokens, **set_, **more)
