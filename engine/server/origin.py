"""Who may call from a browser: nobody from another page, unless the operator named it.

A page of another site can send requests to 127.0.0.1 through its visitor's browser; Host and Origin then differ.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def refuse_other_origins() -> Middleware:
    """403 for requests of foreign pages to a loopback address; OPTIONS is answered empty."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if host and origin and differs(host, origin) and await is_loopback(urlsplit(f"//{host}").hostname):
            log.warning("refused: host %s, origin %s", host, origin)
            return web.Response(status=403)
        return web.Response() if request.method == "OPTIONS" else await handler(request)

    return middleware


def allow_origin(allowed: str) -> Middleware:
    """CORS headers for `allowed` on every response."""
    headers = {
        "Access-Control-Allow-Origin": allowed,
        "Access-Control-Allow-Methods": "POST, GET, DELETE, PUT, OPTIONS",
        "Access-Control-Allow-Headers": "Content-Type, Authorization",
        "Access-Control-Allow-Credentials": "true",
    }

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = web.Response() if request.method == "OPTIONS" else await handler(request)
        except web.HTTPException as refusal:
            refusal.headers.update(headers)  # or the page could not read why
            raise
        response.headers.update(headers)
        return response

    return middleware


def differs(host: str, origin: str) -> bool:
    """Whether `Host` and `Origin` name different places. Ports count only where both have one.

    An origin without a host (`null`, files) counts as no origin, as in ComfyUI.
    """
    here, there = urlsplit(f"//{host.lower()}"), urlsplit(origin.lower())
    if not here.hostname or not there.hostname:
        return False
    try:
        same_port = here.port is None or there.port is None or here.port == there.port
    except ValueError:
        return True
    return here.hostname != there.hostname or not same_port


async def is_loopback(host: str | None) -> bool:
    """Whether every address of `host` is this machine's own."""
    if not host:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address[0]).is_loopback for *_, address in found)
