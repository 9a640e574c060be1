"""Which requests come from this machine itself: by a loopback address, and not passed on by a proxy.

A proxy on this machine has a loopback address, too, and whoever is behind it has not. What was passed on is known by
its headers, which a proxy must add (`docs/autoscalers.md`): nothing else tells its requests from the machine's own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

LOOPBACK: Final = ("127.0.0.0/8", "::1", "::ffff:127.0.0.0/104")
"""Every form of it: an IPv4 client of a socket that listens on `::` has the last one."""

ITSELF: Final = "the worker itself"
"""The client of requests that the front makes of its own application. No socket's address reads so."""


def is_loopback(host: str | None) -> bool:
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def direct_host(host: str | None, header_names: Iterable[str]) -> str | None:
    """The client's address if it spoke to us without a proxy between, else None: a forwarded one is only claimed."""
    return None if any(_is_of_proxy(name.lower()) for name in header_names) else host


def _is_of_proxy(name: str) -> bool:
    return name in ("forwarded", "x-real-ip", "via") or name.startswith("x-forwarded-")
