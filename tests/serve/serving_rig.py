"""A server over a real socket: uvicorn in a thread of this process, on the tiny checkpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

import apparatus
from foreword import LLM
from foreword.serve.app import make_app
from foreword.serve.desk import Desk, served_by
from foreword.serve.run import Server, listen

PATIENCE = 20  # seconds for what takes a fraction of one


@dataclass(frozen=True)
class Served:
    llm: LLM
    desk: Desk
    uvicorn: Server
    url: str  # without /v1

    def post(self, path: str, body: Any, **more: Any) -> httpx.Response:
        content = json.dumps(body).encode()
        return httpx.post(f"{self.url}/v1/{path}", content=content, timeout=PATIENCE, **more)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return strict(response.text)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The events of an answer, [DONE] taken off."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        return events_of(response.text)


def strict(text: str) -> Any:
    """JSON without NaN and infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def events_of(text: str) -> list[Any]:
    lines = text.split("\n\n")
    assert lines.pop() == ""
    assert lines.pop() == "data: [DONE]"
    assert all(line.startswith("data: {") for line in lines)
    return [strict(line.removeprefix("data: ")) for line in lines]


@contextmanager
def serving(llm: LLM, drain_seconds: float = 5, **options: Any) -> Iterator[Served]:
    with listen("127.0.0.1", 0) as door:
        desk = Desk(llm, served_by(llm, ["tiny"]))
        server = Server(make_app(desk, **options), desk, drain_seconds)
        thread = Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield Served(llm, desk, server, f"http://127.0.0.1:{door.getsockname()[1]}")
        finally:
            server.drain()
            thread.join(PATIENCE)
            assert not thread.is_alive()


def wait_until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < limit, "it did not come"
        time.sleep(0.01)


def open_llm(path: Path | None = None, **options: Any) -> LLM:
    return LLM(
        str(path or apparatus.target(max_position=2048)),
        threads=1,
        kv_cache_memory=32 << 20,
        **options,
    )
