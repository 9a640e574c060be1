"""The address guard for boto, which resolves names by itself: its requests go through connections that do not.

botocore's event `before-send` lets a handler send the request. Ours sends it with botocore's own HTTP session, whose
connections ask the guard for the addresses of their host and connect to one of those, certificate and Host header
staying those of the name. Every connection is checked, that of a redirect to another region too. No proxy is used.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from botocore.awsrequest import (
    AWSHTTPConnection,
    AWSHTTPConnectionPool,
    AWSHTTPSConnection,
    AWSHTTPSConnectionPool,
)
from botocore.httpsession import URLLib3Session
from urllib3.exceptions import HTTPError

from worker.guard.safe_address import AddressGuard

MAX_CONNECTIONS = 32

Connect = Callable[[], socket.socket]


def pin_client(client: Any, guard: AddressGuard, *, connect_seconds: float, read_seconds: float) -> None:
    """From now on every request of a boto client reaches only addresses that the guard allows."""
    make_session: Any = URLLib3Session  # its published types know neither pair nor manager
    session = make_session(timeout=(connect_seconds, read_seconds), max_pool_connections=MAX_CONNECTIONS)
    session._manager.pool_classes_by_scheme = _pool_classes(guard)

    def send(request: Any, **_: Any) -> Any:
        return session.send(request)

    client.meta.events.register("before-send.s3", send)


def _pool_classes(guard: AddressGuard) -> dict[str, Any]:
    """urllib3 is given classes, not objects, so the guard is bound into classes of its own."""

    class PinnedHTTPConnection(AWSHTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _connect_pinned(self, "http", guard, super()._new_conn)

    class PinnedHTTPSConnection(AWSHTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _connect_pinned(self, "https", guard, super()._new_conn)

    class PinnedHTTPPool(AWSHTTPConnectionPool):
        ConnectionCls = PinnedHTTPConnection

    class PinnedHTTPSPool(AWSHTTPSConnectionPool):
        ConnectionCls = PinnedHTTPSConnection

    return {"http": PinnedHTTPPool, "https": PinnedHTTPSPool}


def _connect_pinned(connection: Any, scheme: str, guard: AddressGuard, connect: Connect) -> socket.socket:
    """A socket to the first checked address that answers. Raises AddressRefused, HostUnknown, urllib3's HTTPError.

    `_dns_host` is what urllib3 connects to; it reads the certificate's name from there too, so it is put back.
    """
    name = connection._dns_host
    host = f"[{name}]" if ":" in name and not name.startswith("[") else name
    pinned = guard.pin_blocking(f"{scheme}://{host}:{connection.port}/")
    try:
        for address in pinned.addresses[:-1]:
            connection._dns_host = address
            try:
                return connect()
            except HTTPError:
                continue
        connection._dns_host = pinned.addresses[-1]
        return connect()
    finally:
        connection._dns_host = name
