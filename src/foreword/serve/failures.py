"""Errors as OpenAI's clients read them: a status, and a body that names the field at fault."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from foreword.errors import ForewordError, Overloaded, RequestError
from foreword.serve.convert import UnknownModel
from foreword.serve.worker import EngineStopped

RETRY_AFTER = {"Retry-After": "1"}
log = logging.getLogger("foreword.serve")


class Refused(ForewordError):
    """A request that is turned away for what it is at HTTP's level."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class Failure:
    """What a client is told. Inside a stream there is no status; its `code` says it."""

    status: int
    message: str
    parameter: str | None = None
    code: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        code = self.code or HTTPStatus(self.status).name.lower()
        error = {"message": self.message, "type": kind, "param": self.parameter, "code": code}
        return {"error": error}

    @property
    def headers(self) -> dict[str, str]:
        return RETRY_AFTER if self.status == 503 else {}


def failure(error: Exception) -> Failure:
    """A bug of ours shows its kind; the rest of it is in the log."""
    message = str(error)
    if isinstance(error, Refused):
        return Failure(error.status, message, code=error.code)
    if isinstance(error, UnknownModel):
        return Failure(404, message, error.parameter, "model_not_found")
    if isinstance(error, RequestError):
        return Failure(400, message, error.parameter)
    if isinstance(error, (Overloaded, EngineStopped)):
        return Failure(503, message)
    if isinstance(error, ForewordError):
        return Failure(500, message)
    log.error("a request failed", exc_info=error)
    return Failure(500, f"{type(error).__name__}; this is a bug of Foreword, see the server's log")
