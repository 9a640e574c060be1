"""ConnectionTable: client connections counted in total and by address, with some kept free for probes.

Over a limit a new connection replaces the oldest idle one: of its own address, or of the address that has the most
where all slots are taken. Where none is idle it may request `/live`, `/ready` and `/health` and nothing else, on one
of a few short-lived connections that are counted separately.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from darkroom.worker.guard.listener.open_files import fitting, num_open_files
from darkroom.worker.settings.environment import trusted_proxies
from darkroom.worker.settings.listener import ConnectionLimits
from darkroom.worker.settings.loopback import is_loopback

PROBE_SLOTS: Final = 32
PROBE_SLOTS_PER_ADDRESS: Final = 2
OWN_PROBE_SLOTS: Final = 8
"""Additional slots for probes from this machine."""

MIN_IDLE_SECONDS: Final = 1.0
"""Minimum idle time before replacement: the request of a younger connection may be on the way."""

_IPV6_NETWORK_BITS: Final = 64


class Slot(Enum):
    """Permitted use of a connection."""

    FULL = "full"
    PROBE = "probe"


@dataclass(eq=False, slots=True)
class Connection:
    """One client connection. `is_idle` while no request of it is being answered."""

    address: str
    slot: Slot
    opened_at: float
    is_idle: bool = True
    is_released: bool = False
    _close: Callable[[], object] = field(default=lambda: None)

    def close(self) -> None:
        """Close the connection at once."""
        self._close()

    def held_by(self, close: Callable[[], object]) -> None:
        """Record the present owner's way to close it: the handshake's, then the protocol's."""
        self._close = close

    def begin_request(self) -> None:
        self.is_idle = False

    def end_request(self, *, has_more: bool) -> None:
        """Record that a request was answered. `has_more`: further requests of this client are waiting."""
        self.is_idle = not has_more


def connection_table(limits: ConnectionLimits) -> ConnectionTable:
    """Return an empty table whose limits fit into the process's open files."""
    return ConnectionTable(fitting(limits, num_open_files()), trusted_proxies())


class ConnectionTable:
    """Counts of open connections. `proxies`: addresses or networks of many clients, exempt from the address limit."""

    def __init__(
        self,
        limits: ConnectionLimits,
        proxies: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits
        self._proxies = _networks(proxies)
        self._trusts_all = "*" in proxies
        self._clock = clock
        self._full: dict[str, dict[Connection, None]] = {}
        self._num_full = 0
        self._probes: dict[str, int] = {}

    @property
    def num_connections(self) -> int:
        """Number of open connections, those of probes too."""
        return self._num_full + sum(self._probes.values())

    def admit(self, host: str) -> Connection | None:
        """Count a new connection from an address. Return None where it must be closed."""
        address = group_of(host)
        held = self._full.get(address, {})
        is_shared = is_loopback(host) or self._is_proxy(host)
        if not is_shared and len(held) >= self.limits.num_per_address and not self._replace_idle(held):
            return self._admit_probe(address, is_own=False)
        if self._num_full >= self.limits.max_connections and not self._replace_anywhere(address):
            return self._admit_probe(address, is_own=is_loopback(host))
        connection = Connection(address, Slot.FULL, self._clock())
        self._full.setdefault(address, {})[connection] = None
        self._num_full += 1
        return connection

    def release(self, connection: Connection) -> None:
        """Release a connection's slot. May be called twice."""
        if connection.is_released:
            return
        connection.is_released = True
        address = connection.address
        if connection.slot is Slot.PROBE:
            self._probes[address] -= 1
            if not self._probes[address]:
                del self._probes[address]
            return
        self._num_full -= 1
        del self._full[address][connection]
        if not self._full[address]:
            del self._full[address]

    def _admit_probe(self, address: str, *, is_own: bool) -> Connection | None:
        slots = PROBE_SLOTS + (OWN_PROBE_SLOTS if is_own else 0)
        per_address = slots if is_own else PROBE_SLOTS_PER_ADDRESS
        if sum(self._probes.values()) >= slots or self._probes.get(address, 0) >= per_address:
            return None
        self._probes[address] = self._probes.get(address, 0) + 1
        return Connection(address, Slot.PROBE, self._clock())

    def _replace_anywhere(self, address: str) -> bool:
        """Close an idle connection of the address with the most, if it has more than the new connection's address."""
        busiest = max(self._full.values(), key=len, default={})
        return len(busiest) > len(self._full.get(address, {})) and self._replace_idle(busiest)

    def _replace_idle(self, held: dict[Connection, None]) -> bool:
        now = self._clock()
        idle = next((connection for connection in held if connection.is_idle), None)  # the oldest is first
        if idle is None or now - idle.opened_at < MIN_IDLE_SECONDS:
            return False
        self.release(idle)
        idle.close()
        return True

    def _is_proxy(self, host: str) -> bool:
        if self._trusts_all:
            return True
        try:
            address = _unmapped(host)
        except ValueError:
            return False
        return any(address in network for network in self._proxies)


def group_of(host: str) -> str:
    """Return the key under which an address is counted: an IPv6 network of 64 bits is one client's."""
    try:
        address = _unmapped(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        return str(ipaddress.ip_network((int(address), _IPV6_NETWORK_BITS), strict=False))
    return str(address)


def _unmapped(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _networks(hosts: Collection[str]) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Return the addresses and networks among the entries; `*` and names are skipped."""
    found = []
    for host in hosts:
        try:
            found.append(ipaddress.ip_network(host.strip(), strict=False))
        except ValueError:
            continue
    return tuple(found)
