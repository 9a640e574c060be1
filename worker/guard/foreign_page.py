"""Requests that a browser sends for a page of another site, which its user did not ask for. Pure.

A page can have its visitor's browser post to 127.0.0.1, where the worker trusts its own machine. It cannot read the
answer, but would have jobs made, cancelled or paid for. Browsers name the page's site in `Origin`; others send none. A
page whose own name was moved to 127.0.0.1 sends that name as `Host`, too, and could read: `is_own_name` refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def is_of_foreign_page(headers: Mapping[str, str]) -> bool:
    """Return True if `Origin` is a website's and not the place of `Host`. A page that hides its own sends `null`.

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
