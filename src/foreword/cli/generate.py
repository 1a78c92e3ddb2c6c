"""`foreword generate`: complete prompts, show how it went, and prove it with --verify."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.beam.params import BeamSearchParams
from foreword.cli.beams import BeamOptions, beam_line, beam_params, verify_beams
from foreword.cli.explain import Explanation, explain, show_table
from foreword.cli.forms import FormOptions, structured_output
from foreword.cli.numbers import token_ids
from foreword.cli.options import (
    EngineOptions,
    Json,
    Model,
    llm_arguments,
    read_text,
)
from foreword.cli.plain import Comparison, verify
from foreword.cli.sampling import ReportOptions, SamplingOptions, sampling_params
from foreword.cli.show import note, print_json, progress_bars
from foreword.cli.statistics import (
    batch_line,
    rate,
    receipt_line,
    speculation_line,
    speed_line,
)
from foreword.errors import RequestError
from foreword.types import SamplingParams

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.outputs import CompletionOutput, RequestOutput

DEFAULT_MAX_TOKENS = 256
_PROMPT = "Prompt"


@dataclass(slots=True)
class PromptOptions:
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="Repeat for a batch.", rich_help_panel=_PROMPT),
    ] = None
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", help="A file, - = stdin.", rich_help_panel=_PROMPT),
    ] = None
    prompt_ids: Annotated[
        list[Any] | None,
        typer.Option(
            "--prompt-ids",
            parser=token_ids,
            metavar="IDS",
            help='Token ids, "1,2,3". Repeat for a batch.',
            rich_help_panel=_PROMPT,
        ),
    ] = None
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Wrap prompts as user messages, or not. Default: if there is a chat template.",
            rich_help_panel=_PROMPT,
        ),
    ] = None
    system: Annotated[
        str | None,
        typer.Option("--system", help="System message.", rich_help_panel=_PROMPT),
    ] = None
    date: Annotated[
        str | None,
        typer.Option(
            "--date",
            help="Told to templates that ask, YYYY-MM-DD. Default: today.",
            rich_help_panel=_PROMPT,
        ),
    ] = None
    adapter: Annotated[
        str | None,
        typer.Option(
            "--adapter", metavar="NAME", help="One of --lora-modules.", rich_help_panel=_PROMPT
        ),
    ] = None


@dataclass(slots=True)
class Job:
    """Prompts as given (texts or ids), and how they are to be read."""

    texts: list[str] = field(default_factory=list)
    ids: list[list[int]] = field(default_factory=list)
    chat: bool = False
    system: str | None = None
    date: str | None = None
    adapter: str | None = None

    def messages(self) -> list[list[dict[str, str]]]:
        head = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [[*head, {"role": "user", "content": text}] for text in self.texts]


def generate(
    model: Model,
    prompts: PromptOptions,
    sampling: SamplingOptions,
    form: FormOptions,
    beams: BeamOptions,
    engine: EngineOptions,
    report: ReportOptions,
    check: Annotated[
        bool, typer.Option("--verify", help="Decode again plainly, compare every bit.")
    ] = False,
    explained: Annotated[
        bool, typer.Option("--explain", help="Show who guessed each token, and a table of sources.")
    ] = False,
    json: Json = False,
) -> int:
    """Complete one prompt or a batch. The text goes to stdout, statistics to stderr."""
    job = read_job(prompts)
    if sampling.max_tokens is None:
        sampling = replace(sampling, max_tokens=DEFAULT_MAX_TOKENS)
    params: SamplingParams | BeamSearchParams | None
    asked = structured_output(form)
    params = beam_params(beams, sampling, report, asked, explained)
    if params is None:
        params = sampling_params(sampling, report, structured_outputs=asked)
        if check and params.acceptance != "exact":
            raise RequestError(
                f"--verify compares with plain decoding, and --acceptance {params.acceptance} is "
                "approximate; drop one of them",
                "acceptance",
            )
        if check and params.logprobs is None:
            params = replace(params, logprobs=0)  # so that their bits are compared, too
    arguments = llm_arguments(engine, sampling.seed)
    ran = _run(model, arguments, job, params, prompts.chat, json, explained)
    results, outputs = ran.results, ran.outputs
    if not json:
        _show(ran)
    comparison = None
    if check:
        with progress_bars(not json) as progress:
            if isinstance(params, BeamSearchParams):
                comparison = verify_beams(model, arguments, params, results, progress, job.adapter)
            else:
                comparison = verify(model, arguments, params, results, progress, job.adapter)
    if json:
        _print_json(ran, report.logprobs is not None, comparison)
    elif comparison is not None:
        if comparison.plain_tokens_per_second is not None:
            note(f"plain decoding: {rate(comparison.plain_tokens_per_second)}")
        typer.echo(comparison.verdict)
    errors = [one.error for one in outputs] + [getattr(one, "error", None) for one in results]
    failed = [error for error in errors if error is not None]
    for error in failed:
        typer.echo(f"error: {error}", err=True)
    return int(bool(failed) or (comparison is not None and comparison.difference is not None))


def read_job(options: PromptOptions) -> Job:
    """Collect the prompts. Raises RequestError when there is none, or two kinds."""
    texts = list(options.prompt or ())
    if options.prompt_file is not None:
        texts.append(read_text(options.prompt_file))
    ids = list(options.prompt_ids or ())
    if not texts and not ids:
        if sys.stdin.isatty():
            raise RequestError("no prompt; give --prompt, --prompt-file, --prompt-ids or stdin")
        texts.append(read_text(Path("-")))
    if texts and ids:
        raise RequestError("--prompt-ids cannot be mixed with prompts of text; give one kind")
    if ids and (options.chat or options.system):
        raise RequestError("--prompt-ids are taken as they are; drop --chat and --system")
    for number, text in enumerate(texts):
        if not text:
            raise RequestError(f"prompt {number} is empty; give it some text", "prompt")
    return Job(texts, ids, False, options.system, options.date, options.adapter)


@dataclass(slots=True)
class Ran:
    """What a run gave, when the engine is gone. `streamed`: the text is on stdout already."""

    results: list[RequestOutput]
    drafter: str
    seconds: float
    streamed: bool
    explanation: Explanation | None = None

    @property
    def outputs(self) -> list[CompletionOutput]:
        return [output for result in self.results for output in result.outputs]


def _run(
    model: str,
    arguments: dict[str, Any],
    job: Job,
    params: SamplingParams | BeamSearchParams,
    chat: bool | None,
    quiet: bool,
    explained: bool,
) -> Ran:
    """Load, generate, release. An output that is alone is streamed, unless it is explained."""
    from foreword.llm import LLM

    with progress_bars(not quiet) as progress:
        llm = LLM(model, **arguments, progress=progress)
    try:
        job.chat = _wants_chat(llm, job, chat)
        started = time.monotonic()
        one = len(job.texts) + len(job.ids) == 1
        streamed = False
        if isinstance(params, BeamSearchParams):
            results = _search(llm, job, params, quiet)
        elif one and params.num_samples == 1 and not quiet and not explained:
            results, streamed = [_stream(llm, job, params)], True
        else:
            results = _batch(llm, job, params, quiet)
        seconds = time.monotonic() - started
        ran = Ran(results, llm.engine.parts.drafter.name, seconds, streamed)
        if explained:
            pairs = [(one.prompt_token_ids, output) for one in results for output in one.outputs]
            ran.explanation = explain(llm.engine, llm.tokenizer, pairs)
        return ran
    finally:
        llm.close()


def _wants_chat(llm: LLM, job: Job, asked: bool | None) -> bool:
    has_template = llm.tokenizer.chat_template is not None
    if asked and not has_template:
        raise RequestError("--chat: this model has no chat template; use --raw", "chat_template")
    wanted = bool(job.texts) and (has_template if asked is None else asked)
    if job.system is not None and not wanted:
        raise RequestError("--system needs a chat template; drop it or --raw", "system")
    return wanted


def _stream(llm: LLM, job: Job, params: SamplingParams) -> RequestOutput:
    """One prompt, its text printed as it comes."""
    date = None
    prompt: str | list[int] = job.ids[0] if job.ids else job.texts[0]
    if job.chat:
        date = job.date or today()
        prompt = llm.encode_chat(job.messages()[0], date=date)
    sample = None
    for text, running in llm.stream(prompt, params, date, job.adapter):
        sample = running
        typer.echo(text, nl=False)
    typer.echo()
    assert sample is not None  # a request takes at least one step
    return llm.output([sample], job.texts[0] if job.texts else None)


def _batch(llm: LLM, job: Job, params: SamplingParams, quiet: bool) -> list[RequestOutput]:
    with progress_bars(not quiet) as progress:
        if job.chat:
            results = llm.chat(
                job.messages(), params, date=job.date, adapter=job.adapter, progress=progress
            )
        else:
            prompts = job.texts or job.ids
            results = llm.generate(prompts, params, adapter=job.adapter, progress=progress)
    for result, text in zip(results, job.texts, strict=False):
        result.prompt = text
    return results


def _search(llm: LLM, job: Job, params: BeamSearchParams, quiet: bool) -> list[RequestOutput]:
    """The best outputs of every prompt by beam search."""
    prompts: list[Any] = list(job.ids or job.texts)
    date = (job.date or today()) if job.chat else None
    if job.chat:
        prompts = [llm.encode_chat(talk, date=date) for talk in job.messages()]
    results: list[RequestOutput] = []
    with progress_bars(not quiet) as progress:
        results += llm.beam_search(
            prompts, params, adapter=job.adapter, chat_date=date, progress=progress
        )
    for result, text in zip(results, job.texts, strict=False):
        result.prompt = text
    return results


def today() -> str:
    import datetime

    return datetime.date.today().isoformat()


def _show(ran: Ran) -> None:
    """Texts (unless streamed already) to stdout; statistics and receipts to stderr."""
    outputs = ran.outputs
    if not outputs:  # every search has failed
        return
    texts = [output.text for output in outputs]
    if ran.explanation is not None:
        texts = ran.explanation.texts()
    if len(outputs) > 1:
        for number, result in enumerate(ran.results):
            for output in result.outputs:
                typer.echo(f"== prompt {number}, sample {output.index} ==\n{texts.pop(0)}")
        note(batch_line(outputs, ran.seconds))
    else:
        if not ran.streamed:
            typer.echo(texts[0])
        note(speed_line(outputs[0]))
    if "beam_search" in outputs[0].metrics:
        note(beam_line(outputs))
    else:
        note(speculation_line(outputs, ran.drafter))
    if ran.explanation is not None:
        show_table(ran.explanation.rows)
    for output in outputs:
        note(receipt_line(output.receipt))


def _print_json(ran: Ran, logprobs: bool, comparison: Comparison | None) -> None:
    from foreword.cli.as_json import output_json

    content: dict[str, Any] = {
        "drafter": ran.drafter,
        "outputs": [
            output_json(number, result, output, logprobs)
            for number, result in enumerate(ran.results)
            for output in result.outputs
        ],
    }
    if ran.explanation is not None:
        content["explain"] = ran.explanation.as_json()
    if comparison is not None:
        content["verify"] = comparison.as_json()
    print_json(content)
