"""A job made ready for the engine: ids, compiled forms, and the prompt's text for an echo.

May take long (a chat template, a grammar) and touches no engine, so that it runs beside it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foreword import prompts as forms
from foreword.asks import Ask, Prepared
from foreword.chat.prepare import prepare
from foreword.errors import RequestError
from foreword.llm import LLM
from foreword.serve.convert import Job
from foreword.serve.respond import Prompt
from foreword.text.stream import read_prompt

MAX_CHOICES = 1024  # prompts x samples of one request


@dataclass(frozen=True, slots=True)
class Ready:
    """prepared and prompts: one for each prompt of the job."""

    job: Job
    prepared: list[Prepared]
    prompts: list[Prompt]


def make_ready(llm: LLM, job: Job, arrived: float) -> Ready:
    """`arrived`: time.monotonic() when the request came. Raises RequestError naming the field."""
    _check(job)
    asks = [_chat(llm, job, arrived)] if job.chat is not None else _completions(llm, job, arrived)
    prepared = [llm.asks.prepare(ask) for ask in asks]
    prompts = [Prompt()] * len(asks)
    if job.answer.echo:
        prompts = [
            Prompt(*read_prompt(llm.tokenizer, ask.prompt_ids, job.params.skip_special_tokens))
            for ask in asks
        ]
    return Ready(job, prepared, prompts)


def _check(job: Job) -> None:
    params, choices = job.params, max(1, len(job.prompts)) * job.params.num_samples
    if choices > MAX_CHOICES:
        raise RequestError(
            f"prompts times samples are {choices}, at most {MAX_CHOICES} fit one request;"
            " send several",
            "n",
        )
    if job.answer.stream and params.num_samples > params.n:
        raise RequestError("best_of is known at the end only; drop it or stream", "best_of")
    told = job.answer.echo and job.answer.alternatives is not None
    if params.prompt_logprobs is not None and not told:
        raise RequestError(
            "prompt_logprobs is not sent on its own; ask /v1/completions for echo with logprobs",
            "prompt_logprobs",
        )


def _completions(llm: LLM, job: Job, arrived: float) -> list[Ask]:
    return [
        Ask(
            _ids(llm, prompt, place, job.add_special_tokens),
            job.params,
            forms.text_of(prompt),
            adapter=job.adapter,
            handling=job.handling(arrived),
        )
        for place, prompt in enumerate(job.prompts)
    ]


def _chat(llm: LLM, job: Job, arrived: float) -> Ask:
    assert job.chat is not None
    date = job.chat.date or datetime.date.today().isoformat()
    chat = prepare(llm.tokenizer, job.messages, job.params, replace(job.chat, date=date))
    return Ask(
        _ids(llm, chat.ids, 0),
        chat.params,
        chat_date=date,
        form=chat.form,
        adapter=job.adapter,
        handling=job.handling(arrived),
    )


def _ids(llm: LLM, prompt: str | Sequence[int], place: int, special: bool = True) -> list[int]:
    built = llm.built
    if isinstance(prompt, str) and not special:
        prompt = llm.tokenizer.encode(prompt, add_special_tokens=False)
    return forms.token_ids(prompt, place, built.tokenizer, built.vocab_size, built.context)
