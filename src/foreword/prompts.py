"""The forms a prompt may have at a door, and the token ids it stands for.

Knows the vocabulary and the context length; no engine, no sampling.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from foreword.errors import RequestError
from foreword.text.tokenizer import Tokenizer

Prompt = str | SequenceOf[int] | Mapping[str, Any]  # text, ids, {"prompt"} or {"prompt_token_ids"}


def as_list(prompts: Prompt | SequenceOf[Prompt]) -> list[Any]:
    """One prompt, or a list of them, as a list of them."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    listed = list(prompts)
    if listed and _whole(listed[0]) is not None:
        return [listed]
    return listed


def text_of(prompt: Any) -> str | None:
    """The prompt's text, if it came as text."""
    prompt = _unwrapped(prompt)
    return prompt if isinstance(prompt, str) else None


def token_ids(
    prompt: Any, place: int, tokenizer: Tokenizer, vocab_size: int, context: int
) -> list[int]:
    """The ids of a prompt, checked. RequestError names the prompt by its place in the call."""
    prompt = _unwrapped(prompt)
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
    else:
        ids = [_token(item, place, vocab_size) for item in _items(prompt, place)]
    if not ids:
        raise RequestError(f"prompt {place} is empty; give it at least one token", "prompt")
    for token in ids:
        if token >= vocab_size:
            raise _outside(token, place, vocab_size)
    if len(ids) >= context:
        raise RequestError(
            f"prompt {place} has {len(ids)} tokens, the context is {context} and needs room for "
            f"one more; shorten the prompt or raise max_model_len",
            "prompt",
        )
    return ids


def _unwrapped(prompt: Any) -> Any:
    if not isinstance(prompt, Mapping):
        return prompt
    known = [key for key in ("prompt_token_ids", "prompt") if prompt.get(key) is not None]
    others = sorted(map(str, set(prompt) - {"prompt_token_ids", "prompt"}))
    if others or len(known) != 1:
        raise RequestError(
            f"a prompt given as a mapping has 'prompt' or 'prompt_token_ids' and nothing else, "
            f"got {sorted(map(str, prompt))}",
            "prompt",
        )
    return prompt[known[0]]


def _items(prompt: Any, place: int) -> list[Any]:
    try:
        return list(prompt)
    except TypeError:
        raise RequestError(
            f"prompt {place} is a {type(prompt).__name__}; give text or token ids", "prompt"
        ) from None


def _token(item: Any, place: int, vocab_size: int) -> int:
    token = _whole(item)
    if token is None:
        raise RequestError(f"prompt {place} holds {item!r:.60}, not a token id", "prompt")
    if not 0 <= token < vocab_size:
        raise _outside(token, place, vocab_size)
    return token


def _whole(item: Any) -> int | None:
    """A whole number of any kind (numpy, torch), but not a truth value."""
    if isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(item)
    except (TypeError, ValueError):
        return None


def _outside(token: int, place: int, vocab_size: int) -> RequestError:
    return RequestError(
        f"prompt {place} holds token id {token}; the model's ids are 0 to {vocab_size - 1}",
        "prompt",
    )
