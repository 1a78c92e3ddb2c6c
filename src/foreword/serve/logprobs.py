"""Log-probabilities in the two shapes of OpenAI's schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foreword.outputs import Logprob
from foreword.serve.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from foreword.text.tokenizer import Tokenizer

RULED_OUT = -9999.0
Row = Mapping[int, Logprob]  # of one position: the chosen id and the highest ones


class TokenNames:
    """How a token is named: its text, or token_id:N where the request wants no ambiguity."""

    def __init__(self, tokenizer: Tokenizer, as_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def __call__(self, token: int) -> str:
        if self._as_ids:
            return f"token_id:{token}"
        return self.bytes(token).decode("utf-8", "replace")

    def bytes(self, token: int) -> bytes:
        return self._tokenizer.token_bytes(token)


def completion_logprobs(
    names: TokenNames,
    ids: Sequence[int],
    rows: Sequence[Row | None],
    offsets: Sequence[int],
) -> CompletionLogprobs:
    """One entry for each id; a row of None has no logprob (the first token of a prompt)."""
    return CompletionLogprobs(
        tokens=[names(token) for token in ids],
        token_logprobs=[
            None if row is None else finite(row[token].logprob)
            for token, row in zip(ids, rows, strict=True)
        ],
        top_logprobs=[
            None
            if row is None
            else {names(token): finite(entry.logprob) for token, entry in row.items()}
            for row in rows
        ],
        text_offset=list(offsets),
    )


def chat_logprobs(
    names: TokenNames, ids: Sequence[int], rows: Sequence[Row], alternatives: int
) -> ChatLogprobs:
    """`alternatives`: how many of the highest each token lists."""
    return ChatLogprobs(
        content=[
            TokenLogprob(
                **_entry(names, token, row[token]).model_dump(),
                top_logprobs=[
                    _entry(names, other, entry)
                    for other, entry in row.items()
                    if entry.rank is not None and entry.rank <= alternatives
                ],
            )
            for token, row in zip(ids, rows, strict=True)
        ]
    )


def finite(logprob: float) -> float:
    """JSON has no infinity: a token that the model rules out has OpenAI's number for it."""
    return max(logprob, RULED_OUT)


def _entry(names: TokenNames, token: int, entry: Logprob) -> TopLogprob:
    data = names.bytes(token)
    return TopLogprob(token=names(token), logprob=finite(entry.logprob), bytes=list(data))
