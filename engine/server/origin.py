"""Guard against web pages: requests that a browser sends for a page of another site are refused.

A page of another site can send requests to 127.0.0.1 through its visitor's browser. `Host` and `Origin` then differ,
or, after DNS rebinding, both name the other site. So a server that listens on loopback alone also checks `Host`.
Programs send no `Origin`, and are served.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.typedefs import Middleware

from darkroom.engine.settings import EngineSettings

ANY_ORIGIN = "*"
LOCALHOST = "localhost"

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class PageRules:
    """The browser requests to serve. `hosts` None: any `Host`. `cors_origin`: an origin whose pages may call."""

    hosts: frozenset[str] | None
    cors_origin: str | None

    @staticmethod
    def of(settings: EngineSettings) -> PageRules:
        """Restrict `Host` where the operator named hosts, and on loopback, which no other name reaches lawfully."""
        is_restricted = bool(settings.allowed_hosts) or listens_on_loopback_alone(settings.listen)
        named = frozenset(name.strip("[]").lower() for name in settings.allowed_hosts)
        is_private = settings.listen_fd is not None or settings.token_sha256 is not None  # out of a page's reach
        return PageRules(named if is_restricted and not is_private else None, settings.cors_origin)


def refuse_other_pages(rules: PageRules) -> Middleware:
    """Answer 403 to requests of foreign pages, WebSockets included; answer OPTIONS with an empty response."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        problem = find_host_problem(request.headers, rules) or await find_page_problem(request.headers, rules)
        if problem is not None:
            log.warning("request refused: %s", problem)
            return web.Response(status=403, text=f"{problem}\n")
        return web.Response() if request.method == "OPTIONS" else await handler(request)

    return middleware


def allow_origin(allowed: str) -> Middleware:
    """Add CORS headers for `allowed` to every response."""
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


def find_host_problem(headers: Mapping[str, str], rules: PageRules) -> str | None:
    """Name what is wrong with `Host`; None for a loopback address, localhost, a named host, and for no `Host`.

    A page of a rebound name has that name as its `Host`: a browser can neither leave the header out nor change it.
    """
    host = headers.get("Host")
    if rules.hosts is None or not host or rules.cors_origin == ANY_ORIGIN:
        return None
    name = _split(f"//{host}").hostname or ""
    if name in rules.hosts or name == LOCALHOST or _is_own_address(name):
        return None
    return f"Host: not this server's; got {host[:200]!r}, expected a loopback address, localhost or one of --allow-host"


async def find_page_problem(headers: Mapping[str, str], rules: PageRules) -> str | None:
    """Name the foreign page that a browser sends a request to this machine for; None where there is none."""
    host, origin = headers.get("Host"), headers.get("Origin")
    if not host or rules.cors_origin == ANY_ORIGIN:
        return None
    if origin:
        is_foreign = origin != rules.cors_origin and differs(host, origin)
    else:  # browsers leave it out of what needs no CORS, such as images; following a link is the visitor's own doing
        is_foreign = rules.cors_origin is None and headers.get("Sec-Fetch-Site") == "cross-site"
        is_foreign = is_foreign and headers.get("Sec-Fetch-Mode") != "navigate"
    if not is_foreign or not await is_loopback(_split(f"//{host}").hostname):
        return None
    return f"Origin: another site's page; got {(origin or 'a cross-site request')[:200]!r}, expected {host[:200]!r}"


def differs(host: str, origin: str) -> bool:
    """Return True where `Host` and `Origin` name different places. Ports count only where both have one.

    An origin without a host is a page without a place, such as a sandboxed frame (`null`): a foreign one.
    """
    here, there = _split(f"//{host.lower()}"), _split(origin.lower())
    if not here.hostname or not there.hostname:
        return True
    try:
        same_port = here.port is None or there.port is None or here.port == there.port
    except ValueError:
        return True
    return here.hostname != there.hostname or not same_port


async def is_loopback(host: str | None) -> bool:
    """Return True where every address of `host` is this machine's own."""
    if not host:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return _is_own_address(host)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_own_address(str(address[0])) for *_, address in found)


def listens_on_loopback_alone(listen: str) -> bool:
    """Return True where each of the addresses, separated by commas, is loopback."""
    names = [name.strip() for name in listen.split(",")]
    return all(name == LOCALHOST or (_is_own_address(name) and not _is_unspecified(name)) for name in names)


def _is_own_address(text: str) -> bool:
    """Return True for loopback, and for the unspecified address, which connects to loopback."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return address.is_loopback or address.is_unspecified


def _is_unspecified(text: str) -> bool:
    return ipaddress.ip_address(text).is_unspecified


def _split(url: str) -> SplitResult:
    """Parse an address; one that cannot be parsed has no host."""
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
