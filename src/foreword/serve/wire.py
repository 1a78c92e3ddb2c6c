"""Bodies in and out as bytes: strict JSON, and server-sent events."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request

from foreword.errors import RequestError
from foreword.serve.failures import Failure, Refused

DONE = b"data: [DONE]\n\n"


def as_dict(answer: BaseModel) -> dict[str, Any]:
    """Without what is not there, but with the nulls that OpenAI's clients look for."""
    content = answer.model_dump(exclude_none=True, by_alias=True)
    for choice in content.get("choices", ()):
        choice.setdefault("finish_reason", None)
        choice.setdefault("logprobs", None)
        if "message" in choice:
            choice["message"].setdefault("content", None)
            choice["message"].setdefault("refusal", None)
    return content


def as_json(content: Any) -> bytes:
    """ValueError for NaN and infinity, which JSON does not have."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(content: BaseModel | Failure) -> bytes:
    """One server-sent event; JSON holds no line break."""
    body = content.body if isinstance(content, Failure) else as_dict(content)
    return b"data: " + as_json(body) + b"\n\n"


async def read_body(request: Request, limit: int) -> Any:
    """The body as JSON. Refused (413) beyond `limit` bytes, RequestError for anything else."""
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > limit:
            raise _too_large(limit)
    try:
        return json.loads(data.decode("utf-8"), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8 at byte {error.start}", "body") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", "body") from None
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}", "body") from None


def _too_large(limit: int) -> Refused:
    return Refused(413, f"the body is larger than {limit} bytes; send less at once")


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
