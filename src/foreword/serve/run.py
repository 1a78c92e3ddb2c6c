"""Listening, and leaving in good order: on SIGTERM or SIGINT running requests finish, new ones get
503. A drain that takes too long ends what is left with an error, a second signal without one.
"""

from __future__ import annotations

import signal
import socket
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from foreword.errors import ConfigError
from foreword.serve.desk import Desk

CUT_SECONDS = 5  # that readers have after the drain


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, port 0 for any that is free. Raises ConfigError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"--host {host}: {error}; give an address of this machine") from None
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except (OSError, OverflowError) as error:
        found.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; give another --port") from None
    return found


class Server(uvicorn.Server):
    """uvicorn, which would close its door first and answer nobody while it drains."""

    def __init__(self, app: FastAPI, desk: Desk, drain_seconds: float) -> None:
        super().__init__(
            uvicorn.Config(
                app, log_level="warning", access_log=False, timeout_graceful_shutdown=CUT_SECONDS
            )
        )
        self._desk = desk
        self._drain_seconds = drain_seconds
        self._since: float | None = None  # when the drain began

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._since is None:
            self.drain()
        else:
            self.should_exit = True
            self.force_exit = sig == signal.SIGINT

    def drain(self) -> None:
        """Take nothing new, and end when what runs has ended."""
        self._since = time.monotonic()
        self._desk.draining = True

    async def on_tick(self, counter: int) -> bool:
        if self._since is not None:
            late = time.monotonic() - self._since > self._drain_seconds
            if late and not self.should_exit:
                self._desk.worker.cut()
            self.should_exit = self.should_exit or late or not self._desk.open
        return await super().on_tick(counter)
