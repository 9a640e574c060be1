"""Addresses of this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=256)  # asked once or more of every request, about the same few hosts
def is_loopback(host: str | None) -> bool:
    """Return True for a loopback address in any notation."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
