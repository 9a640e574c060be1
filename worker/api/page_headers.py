"""Security headers on replies, with a Content-Security-Policy for each page that allows its own scripts.

Scripts and styles within a page are allowed by their hash, so that injected markup runs nothing. Headers that a route
has set itself are kept.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

CLOSED_POLICY: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""Content-Security-Policy of pages without one of their own."""

PAGE_HEADERS: Final = {
    b"content-security-policy": CLOSED_POLICY.encode(),
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
}

HSTS: Final = b"max-age=86400"  # a day: browsers apply it to the whole host, whatever the port

_PLAYED: Final = ("audio/", "video/")
_PLAYED_POLICY: Final = "default-src 'none'; media-src 'self'"
_FILE_POLICY: Final = "sandbox; default-src 'none'"

_SCRIPT: Final = re.compile(r"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)
_STYLE: Final = re.compile(r"<style(?:\s[^>]*)?>(.*?)</style>", re.DOTALL)


def file_headers(media_type: str) -> dict[str, str]:
    """Return the security headers of a file that a user's workflow made or a caller uploaded.

    Such a file may be an HTML page or an SVG with a script, which must not run with our origin. A browser shows audio
    or a video in a document of its own that loads the same address again, which a sandbox without an origin would
    block; as the type of the reply is final, these need none.
    """
    is_played = media_type.startswith(_PLAYED)
    return {
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": _PLAYED_POLICY if is_played else _FILE_POLICY,
    }


def policy_for(page: str, *, has_inline_styles: bool = False) -> str:
    """Return the Content-Security-Policy of our own page: its own scripts and styles, requests to its own origin.

    Images, audio and videos may come from anywhere, since uploads may be in any store. `has_inline_styles`: its
    scripts set `style` attributes, as Swagger UI's do.
    """
    styles = ("'unsafe-inline'",) if has_inline_styles else tuple(_hashes(_STYLE.findall(page)))
    directives = {
        "default-src": ("'none'",),
        "script-src": ("'self'", *_hashes(_SCRIPT.findall(page))),
        "style-src": ("'self'", *styles),
        "img-src": ("'self'", "data:", "blob:", "https:", "http:"),
        "media-src": ("'self'", "data:", "blob:", "https:", "http:"),
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
    """ASGI middleware that adds security headers, with TLS Strict-Transport-Security among them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and add the headers to its reply."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hsts = HSTS if scope.get("scheme") == "https" else b""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = completed(message.get("headers", ()), hsts)
            await send(message)

        await self._app(scope, receive, send_with_headers)


def completed(headers: Sequence[tuple[bytes, bytes]], hsts: bytes = b"") -> list[tuple[bytes, bytes]]:
    """Return the headers of a reply with the missing ones added. Names are in lower case, as in ASGI."""
    given = dict(headers)
    added = {b"x-content-type-options": b"nosniff"}
    if hsts:
        added[b"strict-transport-security"] = hsts
    if given.get(b"content-type", b"").startswith(b"text/html"):
        added |= PAGE_HEADERS
    return [*headers, *((name, value) for name, value in added.items() if name not in given)]
