"""The routes: OpenAI's /v1/completions, /v1/chat/completions and /v1/models, /health, /version."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from foreword.serve.admit import admit_chat, admit_completion
from foreword.serve.convert import Job, Served, UnknownModel, chat_job, completion_job
from foreword.serve.desk import Desk, Running
from foreword.serve.failures import Refused, failure
from foreword.serve.keys import Keys
from foreword.serve.wire import as_dict, as_json, read_body
from foreword.version import __version__

MAX_BODY_BYTES = 16 * 1024 * 1024


def make_app(
    desk: Desk, *, api_keys: Sequence[str] = (), max_body_bytes: int = MAX_BODY_BYTES
) -> FastAPI:
    """An ASGI application whose engine thread runs from its start-up to its shutdown."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        desk.start()
        yield
        await desk.stop()

    app = FastAPI(title="Foreword", version=__version__, lifespan=lifespan, openapi_url=None)
    app.add_middleware(Keys, keys=api_keys)
    app.add_exception_handler(Exception, _failed)
    for kind in (HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, _failed)

    async def answer(
        request: Request, admit: Callable[[Any], Any], convert: Callable[[Any, Served], Job]
    ) -> Response:
        arrived = time.monotonic()
        try:
            desk.check()
            body = await read_body(request, max_body_bytes)
            job = convert(await asyncio.to_thread(_admitted, admit, body), desk.served)
            running = await _unless_gone(request, desk.take(job, arrived))
        except Exception as error:
            return _failed(request, error)
        if job.answer.stream:
            return Events(running)
        try:
            whole = await _unless_gone(request, running.whole())
            return _json(as_dict(whole))
        except Exception as error:
            return _failed(request, error)
        finally:
            running.close()

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await answer(request, admit_completion, completion_job)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answer(request, admit_chat, chat_job)

    @app.get("/v1/models")
    async def models() -> Response:
        data = [_model(desk, name) for name in desk.served.models]
        return _json({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}")
    async def model(request: Request, name: str) -> Response:
        if name not in desk.served.models:
            return _failed(request, UnknownModel(f"model {name!r:.80} is not served here", "model"))
        return _json(_model(desk, name))

    @app.get("/health")
    async def health() -> Response:
        status = "draining" if desk.draining else "ok" if desk.worker.error is None else "failed"
        return _json({"status": status}, 200 if status == "ok" else 503)

    @app.get("/version")
    async def version() -> Response:
        return _json({"version": __version__})

    return app


class Events(StreamingResponse):
    """Server-sent events; whatever ends the response, a client that leaves too, ends the job."""

    def __init__(self, running: Running) -> None:
        super().__init__(
            running.events(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._running = running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._running.close()


def _admitted(admit: Callable[[Any], Any], body: Any) -> Any:
    try:
        return admit(body)
    except RecursionError:
        raise Refused(400, "the body is nested too deeply") from None


async def _unless_gone(request: Request, work: Any) -> Any:
    """The result of a coroutine, which is cancelled when the client leaves (ClientDisconnect)."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _model(desk: Desk, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": desk.created,
        "owned_by": "foreword",
        "max_model_len": desk.llm.built.context,
    }


def _failed(_: Request, error: Exception) -> Response:
    """Any error as OpenAI's clients read it."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=499)  # nobody reads it
    if isinstance(error, HTTPException):
        error = Refused(error.status_code, str(error.detail))
    failed = failure(error)
    return _json(failed.body, failed.status, failed.headers)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(as_json(content), status, headers, media_type="application/json")
