"""Who may come in: API keys, checked before anything of a request is read."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from foreword.serve.failures import Failure
from foreword.serve.wire import as_json

OPEN = frozenset({"/health"})


class Keys:
    """ASGI middleware. Without keys everybody may come in. Keys are compared by their hashes, all
    of them and in constant time, so that the time tells nothing about them."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._hashes = [sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN or self._known(scope):
            await self._app(scope, receive, send)
            return
        refused = Failure(
            401,
            "missing or wrong API key; send the header Authorization: Bearer KEY",
            code="invalid_api_key",
        )
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": as_json(refused.body)})

    def _known(self, scope: Scope) -> bool:
        if not self._hashes:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        found = sha256(key.strip()).digest()
        matches = [hmac.compare_digest(found, one) for one in self._hashes]
        return scheme.lower() == b"bearer" and any(matches)
