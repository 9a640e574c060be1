"""Webhooks: signed, posted once a try, and tried again over about a day.

Two signatures go along: `X-Webhook-Signature: sha256=<hex HMAC-SHA256 of the body>`, which existing receivers check,
and the Standard Webhooks headers (https://www.standardwebhooks.com), whose key is the base64 after `whsec_` where the
secret is written so, else the secret's bytes. Addresses from requests pass the guard; the operator's own need not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import httpx
from standardwebhooks.webhooks import Webhook

from darkroom.worker.concurrency.backoff import Backoff, retry_after_seconds
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.guard.safe_address import (
    AddressGuard,
    AddressRefused,
    HostUnknown,
    host_and_port,
    redirect_problem,
)
from darkroom.worker.observe.tracing import trace_headers

LONGEST_WAIT_SECONDS = 4 * 3600.0
BACKOFF = Backoff(first_seconds=1.0, longest_seconds=LONGEST_WAIT_SECONDS, factor=3.0, jitter=0.25)
MAX_TRIES = 15  # with the waits above: about 23 hours
REDIRECTS = frozenset({301, 302, 303, 307, 308})
RETRY_AFTER_STATUSES = frozenset({429, 503})


class OutboxRow(Protocol):
    """Pending webhook: the outbox's row. `attempts` counts the tries before this one."""

    @property
    def id(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def body(self) -> bytes: ...
    @property
    def secret(self) -> str | None: ...
    @property
    def timeout_seconds(self) -> float: ...
    @property
    def is_trusted(self) -> bool: ...
    @property
    def attempts(self) -> int: ...
    @property
    def traceparent(self) -> str: ...


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """Outcome of one try. Neither delivered nor `retry_in_seconds`: dead. `error` holds no secret."""

    is_delivered: bool
    retry_in_seconds: float | None = None
    error: str = ""


def sign(secret: str, body: bytes) -> str:
    """Return the value of `X-Webhook-Signature`."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def sign_standard(secret: str, message_id: str, at_seconds: int, body: bytes) -> str:
    """Return the value of `webhook-signature`, version 1 of Standard Webhooks."""
    return Webhook(_standard_key(secret)).sign(message_id, datetime.fromtimestamp(at_seconds, UTC), body.decode())


def headers_of(row: OutboxRow, at_seconds: int) -> dict[str, str]:
    """Return the headers of one try. Without a secret nothing is signed."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "darkroom",
        "webhook-id": row.id,
        "webhook-timestamp": str(at_seconds),
        **trace_headers(row.traceparent),
    }
    if row.secret:
        headers["X-Webhook-Signature"] = sign(row.secret, row.body)
        headers["webhook-signature"] = sign_standard(row.secret, row.id, at_seconds, row.body)
    return headers


def next_wait_seconds(num_tries: int, chance: float, asked_seconds: float | None = None) -> float | None:
    """Return the pause after `num_tries` failed tries (1 after the first); None when it was the last.

    `chance` in 0..1 spreads the pause by a quarter to either side; `asked_seconds`, a receiver's Retry-After, lengthens
    it.
    """
    if num_tries >= MAX_TRIES:
        return None
    return max(BACKOFF.seconds(num_tries, chance), min(asked_seconds or 0.0, LONGEST_WAIT_SECONDS))


def outcome_of_status(
    status: int, num_tries: int, chance: float, asked_seconds: float | None = None
) -> DeliveryOutcome:
    """Return the outcome of a response: 2xx is delivered, 410 is dead, any other status is tried again."""
    if 200 <= status < 300:
        return DeliveryOutcome(True)
    error = f"status {status}"
    if status == 410:
        return DeliveryOutcome(False, None, error)
    asked = asked_seconds if status in RETRY_AFTER_STATUSES else None
    return DeliveryOutcome(False, next_wait_seconds(num_tries, chance, asked), error)


class WebhookSender:
    """Sender of webhooks with two HTTP clients.

    One is for the operator's address, the other checks the address of every connection.
    """

    def __init__(
        self, guard: AddressGuard, now: Callable[[], float] = time.time, rng: random.Random | None = None
    ) -> None:
        self._trusted: httpx.AsyncClient | None = None  # made when it is needed: it reads the machine's certificates
        self._guarded = plain_client(transport=guard.transport(), trust_env=False)
        self._now = now
        self._rng = rng or random.Random()

    async def deliver(self, row: OutboxRow) -> DeliveryOutcome:
        """Try once to deliver. Failures of the receiver or the network are in the outcome."""
        http = self._trusted_client() if row.is_trusted else self._guarded
        num_tries, chance = row.attempts + 1, self._rng.random()
        try:
            host_and_port(row.url)
            headers = headers_of(row, int(self._now()))
            async with (
                asyncio.timeout(row.timeout_seconds),
                # Streamed and never read: only the status counts, and the body may have no end or be compressed.
                http.stream(
                    "POST", row.url, content=row.body, headers=headers, timeout=row.timeout_seconds
                ) as response,
            ):
                asked_seconds = retry_after_seconds(response.headers.get("retry-after"), self._now())
                outcome = outcome_of_status(response.status_code, num_tries, chance, asked_seconds)
                if response.status_code in REDIRECTS:
                    location = response.headers.get("location", "")
                    outcome = replace(outcome, error=redirect_problem(response.status_code, row.url, location))
                return outcome
        except AddressRefused:
            return DeliveryOutcome(False, None, "the address is not one that may be reached")
        except HostUnknown:
            error = "the host does not resolve"
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as broken:  # OSError: TimeoutError, of the whole try
            error = cause_of(broken)
            if isinstance(broken, TimeoutError):
                error = f"no answer within {row.timeout_seconds:g} s"
            elif isinstance(broken, httpx.TimeoutException):
                error = f"{error} ({row.timeout_seconds:g} s)"
        return DeliveryOutcome(False, next_wait_seconds(num_tries, chance), error)

    def _trusted_client(self) -> httpx.AsyncClient:
        if self._trusted is None:
            self._trusted = plain_client()
        return self._trusted

    async def close(self) -> None:
        if self._trusted is not None:
            await self._trusted.aclose()
        await self._guarded.aclose()


def _standard_key(secret: str) -> bytes:
    prefix, _, encoded = secret.partition("whsec_")
    if not prefix and encoded:
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error:
            return secret.encode()
    return secret.encode()
