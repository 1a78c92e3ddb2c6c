"""`foreword chat`: a conversation in the terminal, streamed. Piped lines are turns, too."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.options import (
    EngineOptions,
    Model,
    llm_arguments,
)
from foreword.cli.sampling import SamplingOptions, sampling_params
from foreword.cli.show import note, progress_bars
from foreword.cli.statistics import rate, ratio, speculation_line
from foreword.errors import ForewordError, RequestError
from foreword.types import SamplingParams

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.outputs import CompletionOutput, Sample

HELP = """/reset   start a new conversation (the system message stays)
/help    this list
/quit    leave; so does Ctrl-D
Ctrl-C   end the answer, keep the conversation"""


@dataclass(slots=True)
class Conversation:
    """Messages so far; `system` survives a reset."""

    system: str | None
    messages: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.messages = []
        if self.system is not None:
            self.messages.append({"role": "system", "content": self.system})

    def with_user(self, text: str) -> list[dict[str, str]]:
        return [*self.messages, {"role": "user", "content": text}]

    def add(self, text: str, answer: str) -> None:
        self.messages = [*self.with_user(text), {"role": "assistant", "content": answer}]


@dataclass(slots=True)
class Interrupt:
    """Whether Ctrl-C was pressed since the answer began."""

    asked: bool = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Ctrl-C only sets the mark, so that it never cuts into a step; pressed twice it raises."""
        self.asked = False

        def pressed(number: int, frame: FrameType | None) -> None:
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True

        before = signal.signal(signal.SIGINT, pressed)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def chat(
    model: Model,
    sampling: SamplingOptions,
    engine: EngineOptions,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    date: Annotated[
        str | None,
        typer.Option("--date", help="Told to templates that ask, YYYY-MM-DD. Default: today."),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", metavar="NAME", help="One of --lora-modules.")
    ] = None,
) -> int:
    """Talk with a model. Statistics follow each answer; /help lists what else there is."""
    from foreword.cli.generate import today
    from foreword.llm import LLM

    params = sampling_params(sampling)
    with progress_bars() as progress:
        llm = LLM(model, **llm_arguments(engine, sampling.seed), progress=progress)
    try:
        if llm.tokenizer.chat_template is None:
            raise RequestError(f"{model} has no chat template; use foreword generate")
        llm.built.adapters.find(adapter)  # a wrong name ends here, not at the first answer
        Shell(llm, params, Conversation(system), date or today(), adapter).run()
    finally:
        llm.close()
    return 0


class Shell:
    """Reads lines, answers them, and keeps the score."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        conversation: Conversation,
        date: str,
        adapter: str | None = None,
    ) -> None:
        self._llm, self._params, self._date, self._adapter = llm, params, date, adapter
        self._conversation = conversation
        self._outputs: list[CompletionOutput] = []
        self._interrupt = Interrupt()

    def run(self) -> None:
        for line in turns():
            if line in ("/quit", "/exit"):
                break
            if line == "/help":
                typer.echo(HELP)
            elif line == "/reset":
                self._conversation.reset()
                note("new conversation")
            elif line.startswith("/"):
                note(f"unknown command {line.split()[0]}; /help lists the commands")
            elif line:
                self._turn(line)
        if self._outputs:
            name = self._llm.engine.parts.drafter.name
            note(f"answers: {len(self._outputs)}; {speculation_line(self._outputs, name)}")

    def _turn(self, text: str) -> None:
        """Answer one line; an error ends the turn, not the conversation."""
        try:
            ids = self._llm.encode_chat(self._conversation.with_user(text), date=self._date)
            if len(ids) >= self._context:
                note(
                    f"the context is full: {len(ids)} tokens with this message, "
                    f"{self._context} at most; /reset starts a new conversation"
                )
                return
            output, used = self._answer(ids)
        except ForewordError as error:
            typer.echo(f"error: {error}", err=True)
            return
        self._conversation.add(text, output.text)
        self._outputs.append(output)
        self._report(output, used)

    @property
    def _context(self) -> int:
        return self._llm.built.context

    def _answer(self, ids: list[int]) -> tuple[CompletionOutput, int]:
        """Stream one answer; returns it and the positions of the context in use."""
        sample: Sample | None = None
        with self._interrupt.watch():
            stream: Any = self._llm.stream(ids, self._params, self._date, self._adapter)
            try:
                for text, running in stream:
                    sample = running
                    typer.echo(text, nl=False)
                    if self._interrupt.asked:
                        break
            finally:
                stream.close()
        assert sample is not None
        typer.echo(sample.stream.take())
        return self._llm.result(sample), len(sample.sequence.token_ids)

    def _report(self, output: CompletionOutput, used: int) -> None:
        metrics, speculation = output.metrics, output.metrics["speculative_decoding"]
        steps = speculation["num_spec_steps"]
        note(
            f"[TTFT {metrics['time_to_first_token_ms']:.0f} ms, "
            f"{len(output.token_ids)} tokens, {rate(metrics['tokens_per_second'])}, "
            f"acceptance length {ratio(len(output.token_ids), steps)} over {steps} steps]"
        )
        if output.error is not None:
            typer.echo(f"error: {output.error}", err=True)
        elif output.finish_reason == "abort":
            note("interrupted; the conversation goes on")
        elif output.finish_reason == "length" and used >= self._context:
            note(
                f"the context of {self._context} tokens is full, the answer was cut; "
                f"/reset starts a new conversation"
            )
        elif output.finish_reason == "length":
            note(f"cut at --max-tokens {self._params.max_tokens}")


def turns() -> Iterator[str]:
    """Lines the user types, or the lines of a pipe. Ctrl-C at the prompt clears the line."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.strip()
        return
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives input() line editing and history)
    while True:
        try:
            line = input("> ")
        except KeyboardInterrupt:
            typer.echo()
            continue
        except EOFError:
            typer.echo()
            return
        yield line.strip()
