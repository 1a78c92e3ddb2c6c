"""A body as it came, checked by name and type: a request, or an error that names the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from foreword.errors import RequestError
from foreword.serve.common import CommonRequest
from foreword.serve.refused import REFUSED
from foreword.serve.requests import REQUESTS, ChatCompletionRequest, CompletionRequest
from foreword.text.checks import check_texts

Request = TypeVar("Request", bound=CommonRequest)


def admit_completion(body: Any) -> CompletionRequest:
    """Raises RequestError naming the field and what to do."""
    return _admit(body, "completions", CompletionRequest)


def admit_chat(body: Any) -> ChatCompletionRequest:
    """Raises RequestError naming the field and what to do."""
    return _admit(body, "chat/completions", ChatCompletionRequest)


def _admit(body: Any, endpoint: str, kind: type[Request]) -> Request:
    if not isinstance(body, Mapping):
        raise RequestError(f"the body must be a JSON object, got {type(body).__name__}", "body")
    for name, value in body.items():
        check_texts(name, "body")
        check_texts(value, name)
    known = REQUESTS[endpoint].model_fields
    given = {}
    for name, value in body.items():
        if name in known:
            given[name] = value
        elif name in REFUSED[endpoint]:
            _refuse(name, value, endpoint)
        else:
            raise RequestError(f"unknown field {name!r:.80}{_hint(name, known)}", str(name)[:80])
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _named(error) from None


def _refuse(name: str, value: Any, endpoint: str) -> None:
    refused = REFUSED[endpoint][name]
    neutral = any(type(value) is type(same) and value == same for same in refused.neutral)
    if value is not None and not neutral:
        raise RequestError(f"{name} is not supported: {refused.reason}", name)


def _hint(name: Any, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else "; drop it"


def _named(error: ValidationError) -> RequestError:
    """The first thing wrong, in one line; of the kinds a field may have, the one that fits best."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    same = [one for one in problems if one["loc"][:1] == problems[0]["loc"][:1]]
    problem = max(same, key=lambda one: sum(isinstance(step, int) for step in one["loc"]))
    path = ""
    for step in problem["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "int", "float", "bool"):
            path += f".{step}" if path else step
    message = problem["msg"]
    if problem["type"] == "missing":
        message = "is required"
    elif problem["type"] == "extra_forbidden":
        message = "is not a known field; drop it"
    else:
        message = f"is not right: {message[0].lower()}{message[1:]}"
    return RequestError(f"{path} {message}", path)
