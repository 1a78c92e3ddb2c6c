"""`generate --beam-width N`: the options of a beam search, what they become, and how it went."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.beam.params import BeamSearchParams, names
from foreword.cli.numbers import decimal, whole_number
from foreword.cli.plain import Comparison, compare
from foreword.cli.sampling import RENAMED, ReportOptions, SamplingOptions, sampling_params
from foreword.errors import RequestError
from foreword.params import StructuredOutput

if TYPE_CHECKING:
    from foreword.cli.show import Progress
    from foreword.llm import LLM
    from foreword.outputs import CompletionOutput, RequestOutput

_PANEL = "Beam search"
STOPPING: dict[str, bool | str] = {"true": True, "false": False, "never": "never"}


@dataclass(slots=True)
class BeamOptions:
    beam_width: Annotated[
        int | None,
        typer.Option(
            "--beam-width",
            parser=whole_number,
            metavar="N",
            help="Search with N beams instead of sampling; --n outputs are shown.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        typer.Option(
            "--length-penalty",
            parser=decimal,
            metavar="X",
            help="Power of the length that scores are divided by. Default: 1.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    early_stopping: Annotated[
        str | None,
        typer.Option(
            "--early-stopping",
            metavar="WHEN",
            help="true, false or never: when N outputs are complete, or what can beat them.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    best_first: Annotated[
        bool,
        typer.Option(
            "--best-first",
            help="Expand the best beam first: fewer rows, one a pass.",
            rich_help_panel=_PANEL,
        ),
    ] = False


def beam_params(
    options: BeamOptions,
    sampling: SamplingOptions,
    report: ReportOptions,
    form: StructuredOutput | None,
    explained: bool,
) -> BeamSearchParams | None:
    """None without --beam-width. Raises RequestError for an option that does not go with it."""
    given = {item.name: getattr(options, item.name) for item in fields(options)}
    given = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    if options.beam_width is None:
        for name in given:
            raise RequestError(f"{_flag(name)} is for a beam search; give --beam-width too", name)
        return None
    if explained:
        raise RequestError(
            "--explain shows who guessed what, and nobody guesses for beams; drop it"
        )
    if report.best_of is not None or report.prompt_logprobs is not None:
        raise RequestError("--best-of and --prompt-logprobs do not go with --beam-width; drop them")
    if report.logprobs or report.logprobs_mode not in (None, "raw"):
        raise RequestError("beams have the log-probabilities of their own tokens: --logprobs 0")
    read = sampling_params(sampling)
    for item in fields(sampling):
        assert item.default is not MISSING
        if getattr(sampling, item.name) == item.default:
            continue
        name = RENAMED.get(item.name, item.name)
        if name not in names():
            raise RequestError(
                f"{_flag(item.name)} does not go with --beam-width: beams are ranked by "
                "probability, and nothing is drawn; drop one of them",
                item.name,
            )
        given[name] = getattr(read, name)
    if options.early_stopping is not None:
        word = options.early_stopping.lower()
        if word not in STOPPING:
            raise RequestError(
                f"--early-stopping must be true, false or never, got {word!r}", "early_stopping"
            )
        given["early_stopping"] = STOPPING[word]
    return BeamSearchParams(**given, n=report.n, structured_outputs=form)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def beam_line(outputs: Sequence[CompletionOutput]) -> str:
    """One line over all outputs: scores, and what the searches took."""
    searches = {
        output.receipt["prompt_sha256"]: output.metrics["beam_search"] for output in outputs
    }
    scores = ", ".join(f"{output.receipt['beam_search']['score']:.4f}" for output in outputs)
    expansions = sum(one["num_expansions"] for one in searches.values())
    steps = sum(one["num_steps"] for one in searches.values())
    width = outputs[0].receipt["beam_search"]["beam_width"]
    return f"beam width {width}: scores {scores}; {expansions} beams expanded in {steps} steps"


def verify_beams(
    model: str,
    arguments: Mapping[str, Any],
    params: BeamSearchParams,
    results: Sequence[RequestOutput],
    progress: Progress | None,
    adapter: str | None = None,
) -> Comparison:
    """Search again for each prompt alone, one beam a pass, nothing shared; compare every bit."""
    from foreword.llm import LLM

    gc.collect()  # the first engine must not share the memory with this one
    alone = {"max_num_seqs": 1, "enable_prefix_caching": False}
    nothing = {"method": "none"}
    plain: LLM = LLM(
        model, **{**arguments, **alone, "speculative_config": nothing}, progress=progress
    )
    comparison = Comparison()
    for number, result in enumerate(results):
        if progress is not None:
            progress("verifying", number, len(results))
        (again,) = plain.beam_search(result.prompt_token_ids, params, adapter=adapter)
        comparison.difference = _difference(result, again, comparison)
        if comparison.difference is not None:
            comparison.difference = f"prompt {number}, {comparison.difference}"
            break
    plain.close()
    return comparison


def _difference(result: RequestOutput, again: RequestOutput, done: Comparison) -> str | None:
    if len(result.outputs) != len(again.outputs):
        return f"{len(result.outputs)} outputs in a batch, {len(again.outputs)} alone"
    for output, expected in zip(result.outputs, again.outputs, strict=True):
        found = compare(output, expected, done)
        if found is None and output.receipt["beam_search"] != expected.receipt["beam_search"]:
            found = (
                f"scores of {output.cumulative_logprob!r}, {expected.cumulative_logprob!r} alone"
            )
        if found is not None:
            return f"beam {output.index}, {found}"
        done.outputs += 1
    return None
