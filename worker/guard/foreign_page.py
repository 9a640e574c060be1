"""Requests that a browser sends for a page of another site, which its user did not ask for. Pure.

A page can have its visitor's browser post to 127.0.0.1, where the worker trusts whoever comes. It cannot read what is
answered, but would have jobs made, cancelled or paid for. Browsers name the page's site in `Origin`; others send none.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def is_of_foreign_page(headers: Mapping[str, str]) -> bool:
    """Whether `Origin` is a website's and another place than `Host`. `null` is what a page says that hides its own.

    A program on the machine that shows pages (`file:`, `tauri:`, an extension) was installed there and may ask.
    """
    origin = headers.get("origin", "").lower()
    if origin in ("", "null"):
        return origin == "null"
    try:
        there = urlsplit(origin)
        here = urlsplit(f"{there.scheme}://{headers.get('host', '').lower()}")
        default = DEFAULT_PORTS.get(there.scheme)
        return default is not None and (there.hostname, there.port or default) != (here.hostname, here.port or default)
    except ValueError:  # a port that is none
        return True
