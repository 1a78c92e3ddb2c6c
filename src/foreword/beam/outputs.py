"""What `LLM.beam_search` returns: RequestOutput's attributes, and vLLM's names for beams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from foreword.beam.beams import Finished
from foreword.beam.run import Searching
from foreword.build import Built
from foreword.outputs import CompletionOutput, Logprob, RequestOutput, speculation_metrics
from foreword.receipt import make_receipt
from foreword.text.stream import TextStream
from foreword.types import Sequence, SpeculationStats


@dataclass(slots=True)
class BeamSearchSequence(CompletionOutput):
    """One output. tokens: prompt and output. cumulative_logprob: the beam's score. score: that
    divided by (number of output tokens) ** length_penalty, what outputs are ordered by. logprobs:
    of the chosen tokens only."""

    tokens: list[int] = field(default_factory=list)
    score: float = 0.0

    @property
    def cum_logprob(self) -> float | None:
        return self.cumulative_logprob


@dataclass(slots=True)
class BeamSearchOutput(RequestOutput):
    """One prompt and its outputs, the best first. error: why there are none."""

    error: str | None = None

    @property
    def sequences(self) -> list[Any]:
        """The outputs: BeamSearchSequence each."""
        return self.outputs


def beam_output(
    built: Built, searching: Searching, text: str | None, chat_date: str | None = None
) -> BeamSearchOutput:
    """A search that is done as the user sees it; `text`: its prompt, if it came as text."""
    base, error = searching.base, searching.error
    best = [] if error else searching.search.result()
    outputs: list[CompletionOutput] = [
        _output(built, searching, index, one, chat_date) for index, one in enumerate(best)
    ]
    if error is not None:
        problem: str | None = str(error)
    else:
        problem = None if outputs else "every beam came to where its rules leave no token"
    return BeamSearchOutput(base.id, text, list(base.prompt_ids), outputs, error=problem)


def _output(
    built: Built, searching: Searching, index: int, found: Finished, chat_date: str | None
) -> BeamSearchSequence:
    beam, request, params = found.beam, searching.base, searching.params
    last = beam.tokens[-1]
    own = last in (request.params.stop_token_ids or ())
    sequence = Sequence(request, [*request.prompt_ids, *beam.tokens])
    sequence.finish_reason = "stop" if own or last in request.eos_ids else "length"
    stream = TextStream(built.tokenizer, request.prompt_ids)
    for token in beam.tokens:
        stream.push(token)
    stream.finish()
    receipt = make_receipt(built, sequence, chat_date)
    receipt["beam_search"] = {
        "beam_width": params.beam_width,
        "length_penalty": params.length_penalty,
        "early_stopping": params.early_stopping,
        "best_first": params.best_first,
        "index": index,
        "cumulative_logprob": beam.score,
        "score": found.normalised,
    }
    return BeamSearchSequence(
        index=index,
        text=stream.text,
        token_ids=list(beam.tokens),
        logprobs=_logprobs(found, built.tokenizer.token_text),
        cumulative_logprob=beam.score,
        finish_reason=sequence.finish_reason,
        stop_reason=last if own else None,
        seed=request.seed,
        metrics=_metrics(searching),
        receipt=receipt,
        sources=[""] * len(beam.tokens),
        tokens=list(sequence.token_ids),
        score=found.normalised,
    )


def _metrics(searching: Searching) -> dict[str, Any]:
    """Of the whole search, the same for each of its outputs; names as of a request's."""
    assert searching.first is not None
    assert searching.ended is not None
    return {
        "time_to_first_token_ms": (searching.first - searching.started) * 1e3,
        "generation_time_ms": (searching.ended - searching.started) * 1e3,
        "tokens_per_second": None,
        "speculative_decoding": speculation_metrics(SpeculationStats()),
        "beam_search": {
            "num_steps": searching.passes,
            "num_expansions": searching.search.num_expansions,
        },
    }


def _logprobs(found: Finished, text_of: Callable[[int], str]) -> list[dict[int, Logprob]]:
    pairs = zip(found.beam.tokens, found.beam.added, strict=True)
    return [{token: Logprob(added, None, text_of(token))} for token, added in pairs]
