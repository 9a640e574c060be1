"""Detection of cross-site requests, which a browser sends for a page of another site (CSRF). Pure.

A page can make its visitor's browser post to 127.0.0.1, where the worker trusts its own machine. The page cannot read
the response, but it could create, cancel or be charged for jobs. Browsers send the page's site in `Origin`; other
clients do not send this header. A page whose own name was rebound to 127.0.0.1 also sends that name as `Host` and could
read responses. `is_own_name` refuses such a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


def is_of_foreign_page(headers: Mapping[str, str]) -> bool:
    """Return True if `Origin` is a website other than `Host`, or `null`, which pages with a hidden origin send.

    Programs on this machine that show pages (`file:`, `tauri:`, a browser extension) were installed there and are
    allowed.
    """
    origin = headers.get("origin", "").lower()
    if origin in ("", "null"):
        return origin == "null"
    try:
        there = urlsplit(origin)
        here = urlsplit(f"{there.scheme}://{headers.get('host', '').lower()}")
        default = DEFAULT_PORTS.get(there.scheme)
        return default is not None and (there.hostname, there.port or default) != (here.hostname, here.port or default)
    except ValueError:  # an invalid port
        return True
