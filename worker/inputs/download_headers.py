"""Headers for downloads of a request: which addresses get them. Pure.

A request names them by the beginning of an address. Scheme, host and port must be the same and the path must begin as
that one does, at each redirect anew, both resolved: a key for one server is never sent to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from darkroom.worker.guard.plain_paths import is_below, plain_path

MAX_PREFIXES: Final = 16
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

DownloadHeaders = Mapping[str, Mapping[str, str]]
"""Headers by the beginning of the addresses that get them."""


def find_prefix_problem(prefix: str) -> str | None:
    """Return the fault of an address prefix, or None."""
    try:
        parts = urlsplit(prefix)
        is_usable = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        return "expected the beginning of an address, http:// or https:// with a host"
    if not parts.path.startswith("/"):
        return "expected a path behind the host, at least /"
    if plain_path(parts.path) is None:
        return "expected a path without parts . and .., empty parts and backslashes"
    if "@" in parts.netloc or parts.query or parts.fragment:
        return "expected neither user nor query nor fragment"
    return None


def headers_for(url: str, asked: DownloadHeaders) -> dict[str, str]:
    """Return the headers for an address: those of all prefixes that it begins with, the longest one's last."""
    try:
        parts = urlsplit(url)
        matching = [prefix for prefix in asked if _begins_with(parts, urlsplit(prefix))]
    except ValueError:
        return {}
    return {name: value for prefix in sorted(matching, key=len) for name, value in asked[prefix].items()}


def _begins_with(url: SplitResult, prefix: SplitResult) -> bool:
    return _origin(url) == _origin(prefix) and is_below(url.path, prefix.path)


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
