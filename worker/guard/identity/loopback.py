"""Detection of requests from this machine: loopback address, no proxy in between, and a Host that is the worker's own.

A proxy on this machine has a loopback address too, though its clients are elsewhere. Its requests are recognised by the
headers that proxies and CDNs add. A proxy that adds none cannot be distinguished (`docs/security.md`). A web page whose
name is rebound to 127.0.0.1 (DNS rebinding) makes its visitor's browser send that name, so only the worker's own names
are trusted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("127.0.0.0/8", "::1", "::ffff:127.0.0.0/104")
"""All loopback networks; the last one is an IPv4 client's on a socket that listens on `::`."""

FORWARDING_HEADERS: Final = frozenset(
    {
        "ali-cdn-real-ip",
        "cdn-loop",
        "client-ip",
        "disguised-host",
        "eo-client-ip",
        "eo-connecting-ip",
        "forwarded",
        "forwarded-for",
        "front-end-https",
        "proxy-client-ip",
        "remote-addr",
        "remote-host",
        "rndr-id",
        "true-client-ip",
        "via",
        "was-default-hostname",
        "wl-proxy-client-ip",
        "x-bluecoat-via",
        "x-client-ip",
        "x-cloud-trace-context",
        "x-cluster-client-ip",
        "x-coming-from",
        "x-envoy",
        "x-forward-for",
        "x-host",
        "x-iinfo",
        "x-lb-ip",
        "x-nginx-proxy",
        "x-proxyuser-ip",
        "x-queue-start",
        "x-request-start",
        "x-rewrite-url",
        "x-scheme",
        "x-url-scheme",
        "x-varnish",
    }
)
"""Individual headers that proxies, load balancers and CDNs add to forwarded requests."""

FORWARDING_PREFIXES: Final = (
    "akamai-",
    "cdn-",
    "cf-",
    "cloudfront-",
    "fastly-",
    "fly-",
    "gcdn-",
    "incap-",
    "ngrok-",
    "ssl-client-",
    "tailscale-",
    "x-akamai-",
    "x-amz-cf-",
    "x-amzn-",
    "x-appengine-",
    "x-arr-",
    "x-azure-",
    "x-cdn-",
    "x-cf-",
    "x-envoy-",
    "x-fastly-",
    "x-fd-",
    "x-forwarded",
    "x-google-",
    "x-haproxy-",
    "x-heroku-",
    "x-ms-containerapp-",
    "x-nf-",
    "x-original-",
    "x-proxy-",
    "x-railway-",
    "x-real-",
    "x-remote-",
    "x-render-",
    "x-sucuri-",
    "x-traefik-",
    "x-vercel-",
    "x-waws-",
    "x-zscaler-",
)
"""Prefixes of further headers that proxies add."""


def direct_host(host: str | None, header_names: Iterable[str]) -> str | None:
    """Return the client's address, or None if a proxy forwarded the request, as a forwarded address is unverified."""
    return None if any(_is_of_proxy(name) for name in header_names) else host


def is_own_name(host: str, public_host: str = "") -> bool:
    """Return True if a Host can only mean this worker: an IP literal, `localhost` or `public_host`.

    `host` may have a port; `public_host` is a lower-case name without one.
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = (parts.hostname or "").lower(), parts.port
    except ValueError:
        return False
    if not name or parts.path or parts.query or parts.username is not None or "#" in host:
        return False
    return name in ("localhost", public_host) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_of_proxy(name: str) -> bool:
    plain = name.lower().replace("_", "-")  # many servers treat both spellings as equal
    return plain in FORWARDING_HEADERS or plain.startswith(FORWARDING_PREFIXES)
