"""SSRF protection: requests may name addresses on the public internet, never those of the worker's own network.

Only http and https are allowed. A host is resolved once and every address it resolves to must be public. The connection
goes to one of exactly these addresses, so DNS rebinding between check and use has no effect. Each redirect is a new
request through the same transport and is checked again. `ALLOWED_PRIVATE_HOSTS` names exceptions: host names, addresses
or networks.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit, urlunsplit

import httpx

from darkroom.worker.concurrency.dedicated_thread import run_in_dedicated_thread
from darkroom.worker.errors import InputRejected
from darkroom.worker.guard.special_addresses import Address, is_public

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

DEFAULT_PORTS = {"http": 80, "https": 443}

# One to four numbers, each decimal, octal or hexadecimal, the last of them for all bytes that are left: `127.1`.
_NUMBER = "(?:0[xX][0-9a-fA-F]{0,16}|[0-9]{1,32})"
_OLD_NOTATION = re.compile(rf"{_NUMBER}(?:\.{_NUMBER}){{0,3}}")


class AddressRefused(InputRejected):
    """A URL that may not be requested: another scheme, no host, or an address that is not public."""

    code = "address_refused"


class HostUnknown(InputRejected):
    """A URL whose host does not resolve, possibly only for now."""

    code = "host_unknown"


@dataclass(frozen=True, slots=True)
class PinnedHost:
    """A host and the addresses to which it resolved when it was checked."""

    host: str
    port: int
    addresses: tuple[str, ...]


class AddressGuard:
    """A stateless check of the addresses that a request may name.

    `own_urls` are servers that no request may name, whatever else is allowed, because an engine serves all of its
    files.
    """

    def __init__(
        self,
        allowed_private_hosts: Collection[str] = (),
        resolve: Resolver | None = None,
        own_urls: Collection[str] = (),
    ) -> None:
        self._own_hosts = frozenset(host_and_port(url) for url in own_urls)
        self._allowed_names = frozenset(entry.strip("[]").lower().rstrip(".") for entry in allowed_private_hosts)
        self._allowed_networks = _networks_in(allowed_private_hosts)
        self._resolve = resolve or resolve_host

    def check_form(self, url: str) -> None:
        """Check a URL without a DNS query: scheme, host, and the address if the host is a literal one.

        Raises AddressRefused.
        """
        host, port = host_and_port(url)
        literal = _address(host)
        self._check_own(url, host, port, [] if literal is None else [str(literal)])
        if literal is not None:
            self._check_addresses(url, host, [literal])

    async def pin(self, url: str) -> PinnedHost:
        """Resolve the host of `url` and check every address. Raises AddressRefused or HostUnknown."""
        host, port = host_and_port(url)
        literal = _address(host)
        if literal is not None:
            texts: Sequence[str] = (str(literal),)
        else:
            try:
                texts = await self._resolve(host, port)
            except OSError:
                texts = ()
        addresses = [address for address in map(_address, texts) if address is not None]
        if not addresses:
            raise HostUnknown(f"The host {host} does not resolve", url=shown_url(url))
        self._check_addresses(url, host, addresses)
        self._check_own(url, host, port, [str(address) for address in addresses])
        return PinnedHost(host, port, tuple(str(address) for address in addresses))

    def transport(self) -> httpx.AsyncBaseTransport:
        """Return a transport that pins the host of every request.

        It is for `httpx.AsyncClient(transport=..., trust_env=False)`.
        """
        return _PinnedTransport(self)

    def _check_own(self, url: str, host: str, port: int, addresses: Collection[str]) -> None:
        if any((name.lower().rstrip("."), port) in self._own_hosts for name in (host, *addresses)):
            raise AddressRefused(f"The host {host} is an engine of this worker", url=shown_url(url))

    def _check_addresses(self, url: str, host: str, addresses: Collection[Address]) -> None:
        if host.lower().rstrip(".") in self._allowed_names:
            return
        for address in addresses:
            if not is_public(address) and not any(address in network for network in self._allowed_networks):
                # The message omits the address, which would disclose the internal network.
                raise AddressRefused(
                    f"The host {host} is not on the public internet; ALLOWED_PRIVATE_HOSTS lists exceptions",
                    url=shown_url(url),
                )


class _PinnedTransport(httpx.AsyncBaseTransport):
    """A transport that connects to a checked address of the host; certificate and Host header keep the name."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._made: httpx.AsyncHTTPTransport | None = None

    @property
    def _inner(self) -> httpx.AsyncHTTPTransport:
        """The transport, created at the first request because loading the machine's certificates takes 20 ms."""
        if self._made is None:
            # No keep-alive: connections are pooled by address, and two names may share an address.
            limits = httpx.Limits(max_keepalive_connections=0)
            self._made = httpx.AsyncHTTPTransport(limits=limits, trust_env=False)
        return self._made

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        pinned = await self._guard.pin(str(request.url))
        extensions = {**request.extensions, "sni_hostname": pinned.host}
        for index, address in enumerate(pinned.addresses):
            aimed = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions=extensions,
            )
            try:
                return await self._inner.handle_async_request(aimed)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if index == len(pinned.addresses) - 1:
                    raise
        raise httpx.ConnectError("no address to connect to", request=request)

    async def aclose(self) -> None:
        if self._made is not None:
            await self._made.aclose()


async def resolve_host(host: str, port: int) -> list[str]:
    """Return the system's addresses of a host, without duplicates. Raises OSError.

    Names come from requests, and a name server of theirs may hang. Each lookup has its own thread, so it occupies none
    of a shared pool.
    """
    try:
        found = await run_in_dedicated_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(str(error)) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def shown_url(url: str) -> str:
    """Return a URL for errors and logs, without user, password, query and fragment, which may contain secrets."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, netloc, parts.path, "", ""))[:300]
    except ValueError:
        return "(not a URL)"


def redirect_problem(status: int, url: str, location: str) -> str:
    """Return the reason of a reply that redirects, with its target without secrets, where none is followed."""
    try:
        target = shown_url(urljoin(url, location)) if location else "no Location"
    except ValueError:
        target = "(not a URL)"
    return f"status {status}, a redirect to {target}; redirects are not followed: give that address"


def host_and_port(url: str) -> tuple[str, int]:
    """Return host and port of a URL. Raises AddressRefused.

    httpx parses the URL and also makes the connection, so both use the same host.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise AddressRefused("The URL does not parse", url=shown_url(url)) from None
    if parsed.scheme not in DEFAULT_PORTS:
        raise AddressRefused("Only http:// and https:// addresses can be reached", url=shown_url(url))
    if not parsed.host:
        raise AddressRefused("The URL has no host", url=shown_url(url))
    return parsed.host, parsed.port or DEFAULT_PORTS[parsed.scheme]


def _address(text: str) -> Address | None:
    """Return the address that a host is, in any notation that a system's resolver reads as one; None for a name."""
    plain = unicodedata.normalize("NFKC", text).split("%", 1)[0].rstrip(".")
    try:
        return ipaddress.ip_address(plain)
    except ValueError:
        pass
    if not _OLD_NOTATION.fullmatch(plain):
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(plain))
    except OSError:
        return None


def _networks_in(entries: Collection[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    networks = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
        except ValueError:
            continue  # a host name
    return tuple(networks)
