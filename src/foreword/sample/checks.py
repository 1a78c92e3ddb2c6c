"""What a door asks before it queues a request: do its processors fit the model, is anything left?

Checks that need the vocabulary or the resolved length; ranges are checked by SamplingParams.
"""

from __future__ import annotations

from foreword.errors import RequestError
from foreword.sample.ends import end_ids
from foreword.types import Request


def check_processors(request: Request, vocab_size: int) -> None:
    """Raises RequestError naming the field: ids outside the vocabulary, more tokens asked for than
    there is room for, or no id that could come."""
    params = request.params
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
        for token in getattr(params, name) or ():
            if token >= vocab_size:
                raise RequestError(
                    f"{name} holds id {token}, but the vocabulary ends at {vocab_size - 1}", name
                )
    if params.min_tokens > request.max_tokens:
        raise RequestError(
            f"min_tokens is {params.min_tokens}, but the context has room for "
            f"{request.max_tokens} tokens; lower it or shorten the prompt",
            "min_tokens",
        )
    _check_something_left(request, vocab_size)


def _check_something_left(request: Request, vocab_size: int) -> None:
    params = request.params
    masked = {word[0] for word in request.bad_words if len(word) == 1}
    if params.min_tokens:
        masked |= end_ids(request)
    if params.allowed_token_ids is None and len(masked) < vocab_size:
        return
    allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    if all(token in masked for token in allowed):
        name = "bad_words" if params.allowed_token_ids is None else "allowed_token_ids"
        raise RequestError(
            f"{name}: bad_words and min_tokens mask every id that is allowed; allow more", name
        )
