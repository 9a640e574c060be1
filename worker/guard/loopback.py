"""Requests of this machine itself: a loopback address, no proxy between, and a Host that no name server can move here.

A proxy on this machine has a loopback address, too, and those behind it have not. Its requests show by the headers that
proxies and CDNs add; where it adds none, nothing tells them apart (`docs/security.md`). A web page whose name is
rebound to 127.0.0.1 has its visitor's browser ask under that name, so names are trusted only if they are the worker's.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

LOOPBACK: Final = ("127.0.0.0/8", "::1", "::ffff:127.0.0.0/104")
"""Every form of it: an IPv4 client of a socket that listens on `::` has the last one."""

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
"""Headers of one name that proxies, load balancers and CDNs add to what they pass on."""

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
"""How whole families of such headers begin."""


def is_loopback(host: str | None) -> bool:
    """Return True for an address of this machine in any notation."""
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def direct_host(host: str | None, header_names: Iterable[str]) -> str | None:
    """Return the client's address, or None where a proxy passed the request on: a forwarded one is only claimed."""
    return None if any(_is_of_proxy(name) for name in header_names) else host


def is_own_name(host: str, public_host: str = "") -> bool:
    """Return True for a Host that means this worker wherever it resolves: an IP literal, `localhost`, `public_host`.

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
    plain = name.lower().replace("_", "-")  # many servers take both spellings for one
    return plain in FORWARDING_HEADERS or plain.startswith(FORWARDING_PREFIXES)
