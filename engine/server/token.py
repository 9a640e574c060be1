"""Bearer token of a server that listens on a TCP port for a front.

The engine holds the token's SHA-256 alone, so that no node pack finds the token in this process before a request brings
it. The token itself is random and long, so that its hash needs no salt and may stand on the command line.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

SCHEME = "bearer"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def require_token(token_sha256: str) -> Middleware:
    """Answer 401 to requests that bring no token: `Authorization: Bearer TOKEN`, or `?token=TOKEN`.

    The query is for WebSockets of browsers and ComfyUI's clients, which cannot set headers. A cookie does not count:
    a browser sends it along for pages of other sites.
    """

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.method == "OPTIONS" or is_right(_given(request), token_sha256):
            return await handler(request)
        return web.Response(
            status=401,
            text="token: missing or wrong; expected `Authorization: Bearer TOKEN` or `?token=TOKEN`\n",
            headers={"WWW-Authenticate": "Bearer"},
        )

    return middleware


def is_right(given: str, token_sha256: str) -> bool:
    """Return True for the token with this hash; compare in constant time."""
    digest = hashlib.sha256(given.encode(errors="surrogateescape")).hexdigest()
    return hmac.compare_digest(digest, token_sha256)


def _given(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == SCHEME else request.query.get("token", "")
