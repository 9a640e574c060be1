"""AddressGuard: requests may name addresses on the public internet, never those behind the worker.

Only http and https; a host is resolved once, every address it resolves to must be public, and the connection goes to
one of those very addresses, so a name cannot change its meaning between check and use. Each redirect is a new request
through the same transport and is checked again. `ALLOWED_PRIVATE_HOSTS` names exceptions: host names, addresses or
networks.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx

from worker.errors import InputRejected
from worker.guard.special_addresses import Address, is_public
from worker.own_thread import in_own_thread

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]

DEFAULT_PORTS = {"http": 80, "https": 443}


class AddressRefused(InputRejected):
    """The URL may not be reached from here: another scheme, no host, or an address that is not public."""

    code = "address_refused"


class HostUnknown(InputRejected):
    """The URL's host does not resolve, at least not now."""

    code = "host_unknown"


@dataclass(frozen=True, slots=True)
class PinnedHost:
    """A host and the addresses it had when it was checked."""

    host: str
    port: int
    addresses: tuple[str, ...]


class AddressGuard:
    """Decides which addresses a request may name. Stateless.

    `own_urls` are servers that no request may name, whatever is allowed: an engine gives every file that it has.
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
        """What can be said without asking a name server: scheme, host, and a host that is an address itself.

        Raises AddressRefused.
        """
        host, port = host_and_port(url)
        self._check_own(url, host, port, [])
        literal = _address(host)
        if literal is not None:
            self._check_addresses(url, host, [literal])

    async def pin(self, url: str) -> PinnedHost:
        """The host of `url` with its addresses, all of them allowed. Raises AddressRefused or HostUnknown."""
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
        """For `httpx.AsyncClient(transport=..., trust_env=False)`: every request of that client is pinned."""
        return _PinnedTransport(self)

    def _check_own(self, url: str, host: str, port: int, addresses: Collection[str]) -> None:
        if any((name.lower().rstrip("."), port) in self._own_hosts for name in (host, *addresses)):
            raise AddressRefused(f"The host {host} is an engine of this worker", url=shown_url(url))

    def _check_addresses(self, url: str, host: str, addresses: Collection[Address]) -> None:
        if host.lower().rstrip(".") in self._allowed_names:
            return
        for address in addresses:
            if not is_public(address) and not any(address in network for network in self._allowed_networks):
                # The address itself stays unsaid: it would tell the caller about the network behind us.
                raise AddressRefused(
                    f"The host {host} is not on the public internet; ALLOWED_PRIVATE_HOSTS lists exceptions",
                    url=shown_url(url),
                )


class _PinnedTransport(httpx.AsyncBaseTransport):
    """Sends each request to a checked address of its host; certificate and Host header stay those of the name."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._made: httpx.AsyncHTTPTransport | None = None

    @property
    def _inner(self) -> httpx.AsyncHTTPTransport:
        """Made for the first request, because reading the machine's certificates takes 20 ms."""
        if self._made is None:
            # No connection is kept: a kept one is found again by address, and two names may share an address.
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
    """Return the system's answer for a host, without duplicates. Raises OSError.

    Names come from requests, and a name server of theirs may hang: no lookup takes a place that others need.
    """
    try:
        found = await in_own_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(str(error)) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def shown_url(url: str) -> str:
    """A URL as errors and logs may show it: without user, password, query and fragment, which may hold secrets."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, netloc, parts.path, "", ""))[:300]
    except ValueError:
        return "(not a URL)"


def host_and_port(url: str) -> tuple[str, int]:
    """Read by httpx, which also makes the connection, so that both see the same host. Raises AddressRefused."""
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
    try:
        return ipaddress.ip_address(text.split("%", 1)[0])
    except ValueError:
        return None


def _networks_in(entries: Collection[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    networks = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
        except ValueError:
            continue  # a host name
    return tuple(networks)
