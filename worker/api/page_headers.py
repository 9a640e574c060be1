"""PageHeaders: security headers on replies, and a Content-Security-Policy for each page that allows its own scripts.

Scripts and styles within a page are allowed by their hash, so that markup somebody else gets into it runs nothing. What
a route has set itself stays.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSED_POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For pages that say nothing about themselves."""

_SCRIPT: Final = re.compile(r"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)
_STYLE: Final = re.compile(r"<style(?:\s[^>]*)?>(.*?)</style>", re.DOTALL)


def policy_for(page: str, *, has_inline_styles: bool = False) -> str:
    """Return the Content-Security-Policy of a page of ours: its own scripts and styles, requests to its own origin.

    Pictures may come from anywhere, for uploads lie in any store. `has_inline_styles`: its scripts set `style`
    attributes, as Swagger UI's do.
    """
    styles = ("'unsafe-inline'",) if has_inline_styles else tuple(_hashes(_STYLE.findall(page)))
    directives = {
        "default-src": ("'none'",),
        "script-src": ("'self'", *_hashes(_SCRIPT.findall(page))),
        "style-src": ("'self'", *styles),
        "img-src": ("'self'", "data:", "blob:", "https:", "http:"),
        "connect-src": ("'self'",),
        "base-uri": ("'none'",),
        "form-action": ("'none'",),
        "frame-ancestors": ("'none'",),
    }
    return "; ".join(f"{name} {' '.join(sources)}" for name, sources in directives.items())


def _hashes(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        if text.strip():
            yield f"'sha256-{base64.b64encode(sha256(text.encode()).digest()).decode()}'"


class PageHeaders:
    """ASGI middleware. `hsts_seconds` 0: browsers are not told to stay with TLS."""

    def __init__(self, app: ASGIApp, hsts_seconds: int) -> None:
        self._app = app
        self._hsts = f"max-age={hsts_seconds}" if hsts_seconds else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its reply with the headers added."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_tls = scope.get("scheme") == "https"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._complete(message, is_tls)
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _complete(self, message: Message, is_tls: bool) -> None:
        headers = MutableHeaders(raw=message["headers"])
        headers.setdefault("X-Content-Type-Options", "nosniff")
        if is_tls and self._hsts:
            headers.setdefault("Strict-Transport-Security", self._hsts)
        if headers.get("content-type", "").startswith("text/html"):
            headers.setdefault("Content-Security-Policy", CLOSED_POLICY)
            headers.setdefault("X-Frame-Options", "DENY")
            headers.setdefault("Referrer-Policy", "no-referrer")
            headers.setdefault("Cross-Origin-Opener-Policy", "same-origin")
