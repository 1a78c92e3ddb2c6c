"""What is asked of one prompt, and the requests that it becomes: one for each sample.

The engine sees ids and rules; texts become ids here (stop strings, bad words, breakers), forms are
compiled, defaults resolved, and whatever cannot be served is refused before anything is queued.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from foreword.beam.params import BeamSearchParams
from foreword.build import Built
from foreword.chat.reply import ReplyForm, text_stream
from foreword.errors import ConfigError, RequestError
from foreword.sample.arithmetic import coded
from foreword.sample.checks import check_processors
from foreword.sample.form_rule import request_form
from foreword.sample.noise import derive, fresh_seed, request_seed
from foreword.text.forms import Forms
from foreword.text.stops import split_stops
from foreword.text.stream import TextStream
from foreword.text.words import bad_word_ids, breaker_ids
from foreword.types import Handling, Request, SamplingParams

MAX_BREAKERS = 32  # lists of DRY breakers whose ids are kept
PLAIN_HANDLING = Handling()


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt and what is wanted of it. text: the prompt as it was given, if as text. chat_date:
    what its template was told. form: how its replies are read. adapter: the name of a loaded
    one."""

    prompt_ids: list[int]
    params: SamplingParams
    text: str | None = None
    chat_date: str | None = None
    form: ReplyForm | None = None
    adapter: str | None = None
    handling: Handling = PLAIN_HANDLING


@dataclass(frozen=True, slots=True)
class Prepared:
    """An ask whose texts have become ids. `like`: all that its samples' requests share but ids,
    seeds, and who watches them."""

    ask: Ask
    like: Request
    stops: tuple[str, ...]
    shown: int | None  # logprobs to show; more may be kept
    started: float


class Asks:
    """Makes requests for one engine."""

    def __init__(self, built: Built) -> None:
        self._built = built
        self._tokenizer = built.tokenizer
        self.forms = Forms(built.tokenizer, built.vocab_size, built.checkpoint.eos_ids)
        self._breaker_ids: dict[tuple[str, ...], frozenset[int]] = {(): frozenset()}

    def prepare(self, ask: Ask) -> Prepared:
        """Raises RequestError naming the field that cannot be served."""
        built, started = self._built, time.monotonic()
        params = ask.params.resolve(built.defaults)
        room = built.context - len(ask.prompt_ids)
        stops, stop_ids = split_stops(self._tokenizer, params.stop or ())
        ends = stop_ids if params.ignore_eos else stop_ids | built.checkpoint.eos_ids
        shown = params.logprobs
        if params.num_samples > params.n and shown is None:
            params = replace(params, logprobs=0)  # what the best are chosen by
        like = Request(
            id="",
            prompt_ids=tuple(ask.prompt_ids),
            params=params,
            seed=0,
            eos_ids=ends,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            bad_words=bad_word_ids(self._tokenizer, params.bad_words or ()),
            dry_breakers=self._breakers(params),
            expires=None if params.time_limit is None else started + params.time_limit,
            grammar=request_form(self.forms, params, built.checkpoint.eos_ids | stop_ids),
            salt=ask.handling.salt,
            priority=ask.handling.priority,
            deadline=ask.handling.deadline,
            draft_limit=ask.handling.draft_limit,
        )
        check_processors(like, built.vocab_size)
        return Prepared(ask, like, stops, shown, started)

    def samples(self, prepared: Prepared, number: int) -> Iterator[tuple[Request, TextStream]]:
        """The requests of ask `number`, each with what reads its tokens. ConfigError or
        RequestError for an adapter that is not there."""
        ask, like, params = prepared.ask, prepared.like, prepared.like.params
        under = self._under(ask.adapter)
        seed = self._seed(params, number)
        unscored = replace(params, prompt_logprobs=None) if like.max_tokens else params
        for index in range(params.num_samples):
            stream = text_stream(ask.form, derive(seed, index))(
                self._tokenizer,
                ask.prompt_ids,
                prepared.stops,
                params.skip_special_tokens,
                include_stop=params.include_stop_str_in_output,
                end_ids=like.eos_ids | frozenset(params.stop_token_ids or ()),
                min_tokens=params.min_tokens,
            )
            request = replace(
                like,
                id=f"{number}-{index}",
                params=coded(unscored if index else params, seed, index),
                seed=derive(seed, index),
                group=str(number),
                watch=stream.push,
                **under,
            )
            yield request, stream

    def beam(
        self,
        prompt_ids: list[int],
        params: BeamSearchParams,
        number: int,
        adapter: str | None = None,
    ) -> Request:
        """What the requests of a search have in common."""
        like = self.prepare(Ask(prompt_ids, params.sampling())).like
        return replace(like, id=f"{number}", **self._under(adapter))

    def _under(self, adapter: str | None) -> dict[str, Any]:
        """The fields of a request under an adapter, None = the model itself."""
        chosen = self._built.adapters.find(adapter)
        return {"adapter": adapter, "adapter_sha256": "" if chosen is None else chosen.sha256}

    def _breakers(self, params: SamplingParams) -> frozenset[int]:
        """Looks at every token's text: the answers are kept, for a few lists of breakers."""
        key = tuple(params.dry_sequence_breakers) if params.dry_multiplier else ()
        found = self._breaker_ids.get(key)
        if found is None:
            found = breaker_ids(self._tokenizer, key)
            if len(self._breaker_ids) >= MAX_BREAKERS:
                self._breaker_ids.clear()
            self._breaker_ids[key] = found
        return found

    def _seed(self, params: SamplingParams, number: int) -> int:
        if params.seed is not None:
            return params.seed
        base = self._built.config.seed
        return fresh_seed() if base is None else request_seed(base, number)


def for_each(given: Any, count: int, what: str) -> list[Any]:
    """One value for every prompt, or a list of them, one for each. ConfigError for another
    number."""
    if not isinstance(given, (list, tuple)):
        return [given] * count
    if len(given) != count:
        raise ConfigError(f"{count} prompts but {len(given)} {what}; give one or {count}")
    return list(given)


def check_single(params: SamplingParams) -> None:
    """RequestError for more samples than a stream can have."""
    for name in ("n", "best_of"):
        given = getattr(params, name)
        if given not in (None, 1):
            raise RequestError(f"a stream has one sample, got {name} = {given}", name)
