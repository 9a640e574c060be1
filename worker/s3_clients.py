"""Clients of stores that speak S3: where a request's files come from and go to, and how such a store is reached.

boto3 is imported with the first use, in a thread. Checksums are added only where the store asks for them, since several
stores refuse them. A store that the request names, not the operator, is reached through the address guard.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import SecretStr

from worker.guard.safe_address import AddressGuard, AddressRefused, HostUnknown
from worker.setting_slices import S3Config

READ_TIMEOUT_SECONDS = 60.0
CLIENTS_KEPT = 8
CONNECTIONS_KEPT = 32

AddressingStyle = Literal["auto", "path", "virtual"]


@dataclass(frozen=True, slots=True)
class S3Target:
    """A bucket and the right to use it. `is_trusted`: the endpoint came from the operator, not from a request."""

    access_key_id: str
    secret_access_key: SecretStr
    bucket_name: str
    endpoint_url: str
    region: str
    connect_timeout_seconds: float
    connect_attempts: int
    addressing_style: AddressingStyle
    is_trusted: bool


def choose_target(asked: Mapping[str, Any] | None, config: S3Config, *, bucket: str = "") -> S3Target | None:
    """The target of a request: its own settings, each empty one filled from the environment's.

    The operator's key is used at the operator's endpoint alone. `bucket`, that of an input, replaces the one that
    either names; the operator's key reads inputs from the operator's bucket alone. None unless key, secret and bucket
    are all known.
    """
    own = {key: value for key, value in (asked or {}).items() if value not in (None, "")}
    endpoint = str(own.get("endpoint_url", config.endpoint_url))
    if endpoint != config.endpoint_url or bucket not in ("", config.bucket_name):
        key_id, secret = str(own.get("access_key_id", "")), str(own.get("secret_access_key", ""))
    else:
        key_id = str(own.get("access_key_id", config.access_key_id.get_secret_value()))
        secret = str(own.get("secret_access_key", config.secret_access_key.get_secret_value()))
    bucket = bucket or str(own.get("bucket_name", config.bucket_name))
    if not (key_id and secret and bucket):
        return None
    return S3Target(
        access_key_id=key_id,
        secret_access_key=SecretStr(secret),
        bucket_name=bucket,
        endpoint_url=endpoint,
        region=str(own.get("region", config.region)),
        connect_timeout_seconds=float(own.get("connect_timeout", config.connect_timeout_seconds)),
        connect_attempts=max(1, int(own.get("connect_attempts", config.connect_attempts))),
        addressing_style=own.get("addressing_style", config.addressing_style),
        is_trusted=endpoint == config.endpoint_url,
    )


class S3Clients:
    """Owns the clients, the last few used ones. Used on threads."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard
        self._clients: OrderedDict[S3Target, Any] = OrderedDict()
        self._lock = threading.Lock()

    def client(self, target: S3Target) -> Any:
        """A boto client for the target. Raises ValueError for an endpoint that is no URL, AddressRefused."""
        if target.endpoint_url and not target.is_trusted:
            self._guard.pin_blocking(target.endpoint_url)  # said at once, where a connection would be tried again
        with self._lock:
            client = self._clients.pop(target, None)
            self._clients[target] = client = client or self._make(target)
            if len(self._clients) > CLIENTS_KEPT:
                self._clients.popitem(last=False)
        return client

    def _make(self, target: S3Target) -> Any:
        from boto3.session import Session  # a front that never meets a store never needs it
        from botocore.config import Config

        client = Session().client(
            "s3",
            aws_access_key_id=target.access_key_id,
            aws_secret_access_key=target.secret_access_key.get_secret_value(),
            endpoint_url=target.endpoint_url or None,
            region_name=target.region or "us-east-1",
            config=Config(
                signature_version="s3v4",
                connect_timeout=target.connect_timeout_seconds,
                read_timeout=READ_TIMEOUT_SECONDS,
                max_pool_connections=CONNECTIONS_KEPT,
                retries={"total_max_attempts": target.connect_attempts, "mode": "standard"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                ignore_configured_endpoint_urls=True,  # type: ignore[call-arg]  # its published types are older
                s3={"addressing_style": target.addressing_style},
            ),
        )
        if not target.is_trusted:
            from worker.guard.pinned_boto import pin_client

            pin_client(
                client,
                self._guard,
                connect_seconds=target.connect_timeout_seconds,
                read_seconds=READ_TIMEOUT_SECONDS,
            )
        return client


def store_reason(error: Exception) -> str:
    """Short and without the store's own words, which may repeat keys and signatures."""
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        ConnectTimeoutError,
        HTTPClientError,
        ReadTimeoutError,
        SSLError,
    )

    match error:
        case ClientError():
            response: Mapping[str, Any] = error.response
            code = response.get("Error", {}).get("Code") or "refused"
            return f"{code} ({response.get('ResponseMetadata', {}).get('HTTPStatusCode')})"
        case ConnectTimeoutError() | ReadTimeoutError():
            return "the store takes too long"
        case SSLError():
            return "the store's certificate is not valid"
        case HTTPClientError() | ConnectionError():
            cause = error.kwargs.get("error")
            if isinstance(cause, AddressRefused | HostUnknown):
                return cause.message
            return "the store cannot be reached"
        case FileNotFoundError():
            return "the file is gone"
        case _:
            return type(error).__name__
