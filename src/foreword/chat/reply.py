"""Reading one reply while it is made: text, then reasoning, then tool calls."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from foreword.chat import reasoning
from foreword.chat.events import (
    Call,
    ChatMessage,
    Content,
    Event,
    Reasoning,
    Style,
    ToolParser,
    joined,
)
from foreword.chat.reasoning import ThinkParser
from foreword.text.stream import TextStream
from foreword.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """How the replies to one prompt are read. style None: no tool calls in them. thinks: reasoning
    is taken apart; opened: the prompt ends inside a thought. many: a reply may hold several calls;
    else it ends with the first."""

    style: Style | None = None
    tools: Mapping[str, Mapping[str, Any]] | None = None
    thinks: bool = False
    opened: bool = False
    many: bool = True

    def markers(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the parsers must see in the text."""
        texts: tuple[str, ...] = reasoning.MARKERS if self.thinks else ()
        texts += self.style.MARKERS if self.style is not None else ()
        ids = {tokenizer.raw.token_to_id(text) for text in texts}
        return frozenset(token for token in ids if token in tokenizer.special_ids)


class ReplyStream(TextStream):
    """A TextStream whose text is taken apart as well. `message` is complete after `finish`.
    Ids of calls (`call_ids`) are the same for the same prompt and seed."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        stops: Sequence[str],
        skip_special_tokens: bool = True,
        *,
        form: ReplyForm,
        seed: int = 0,
        **options: Any,
    ) -> None:
        shown = form.markers(tokenizer)
        super().__init__(tokenizer, prompt_ids, stops, skip_special_tokens, shown=shown, **options)
        self._thoughts = ThinkParser(form.opened) if form.thinks else None
        self._calls: ToolParser | None = (
            form.style.make(form.tools or {}) if form.style is not None else None
        )
        self._many = form.many
        self._events: list[Event] = []
        self.call_ids = f"call_{_digest(prompt_ids, seed)}" + "{}"  # format(index): an id
        self.message = ChatMessage()

    def push(self, token: int) -> bool:
        """Also True when the one call that the reply may hold is complete."""
        return super().push(token) or self.enough

    def finish(self) -> None:
        if self._finished:
            return
        super().finish()
        thought, answer = self._thoughts.finish() if self._thoughts is not None else ("", "")
        events = self._answer(answer)
        if self._calls is not None:
            events += self._calls.finish()
        self._take_apart(thought, events)

    def take_events(self) -> list[Event]:
        """What became certain since the last take, neighbours of a kind joined."""
        taken, self._events = self._events, []
        return joined(taken)

    @property
    def enough(self) -> bool:
        """Whether the one call that the reply may hold is complete."""
        return not self._many and self._calls is not None and self._calls.finished > 0

    def _keep(self, text: str) -> None:
        super()._keep(text)
        if text:
            thought, answer = self._thoughts.push(text) if self._thoughts else ("", text)
            self._take_apart(thought, self._answer(answer))

    def _answer(self, text: str) -> list[Event]:
        if not text:
            return []
        return [Content(text)] if self._calls is None else self._calls.push(text)

    def _take_apart(self, thought: str, events: list[Event]) -> None:
        if not self._many:
            events = [e for e in events if not isinstance(e, Call) or e.index == 0]
        if thought:
            events = [Reasoning(thought), *events]
        self._events += events
        self.message.add(events, self.call_ids)


def text_stream(form: ReplyForm | None, seed: int) -> Callable[..., TextStream]:
    """How the text of a sample is kept: taken apart where a form says so."""
    return TextStream if form is None else partial(ReplyStream, form=form, seed=seed)


def _digest(prompt_ids: Sequence[int], seed: int) -> str:
    """Differs from turn to turn of a conversation: each turn's prompt holds the one before."""
    text = f"{seed}:{','.join(map(str, prompt_ids))}"
    return hashlib.sha256(text.encode()).hexdigest()[:20] + "_"
