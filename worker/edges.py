"""Edges: everything that meets the outside of the machine, put together from the settings."""

from __future__ import annotations

import asyncio
import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx

from worker.autoscaler.vast import EnvelopeOpener, PublicKeySource
from worker.errors import InputRejected, Problem, RequestRejected
from worker.guard.auth import Gatekeeper
from worker.guard.safe_address import AddressGuard
from worker.jobs.outbox import Sender
from worker.jobs.plain_stages import LocalOutputs, NoInputs
from worker.jobs.stages import InputStage, OutputStage
from worker.jobs.store import WebhookRow
from worker.services import RequestGuard
from worker.settings import Settings


@dataclass(frozen=True, slots=True)
class Sent:
    is_delivered: bool
    retry_in_seconds: float | None = None
    error: str = ""


class PlainSender:
    """Posts a webhook once a minute until it is taken."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(follow_redirects=False)

    async def deliver(self, row: WebhookRow) -> Sent:
        headers = {"Content-Type": "application/json"}
        if row.secret:
            headers["X-Webhook-Signature"] = "sha256=" + hmac.new(row.secret.encode(), row.body, sha256).hexdigest()
        try:
            response = await self._http.post(row.url, content=row.body, headers=headers, timeout=row.timeout_seconds)
        except httpx.HTTPError as error:
            return Sent(False, 60.0, type(error).__name__)
        return Sent(response.is_success, 60.0, "" if response.is_success else f"status {response.status_code}")

    async def close(self) -> None:
        await self._http.aclose()


class Edges:
    def __init__(self, settings: Settings) -> None:
        self._sender = PlainSender()
        self.webhook_sender: Sender = self._sender
        self.inputs: InputStage = NoInputs()
        self.outputs: OutputStage = LocalOutputs()
        self.guard: RequestGuard = Gatekeeper(settings.auth_config())
        self._addresses = AddressGuard(settings.allowed_private_hosts)
        self._fetching: asyncio.Task[bool] | None = None
        vast = settings.vast_config()
        self._autoscaler_http = httpx.AsyncClient()
        has_token = bool(vast.master_token.get_secret_value())
        self._keys = PublicKeySource(vast.report_addresses, self._autoscaler_http) if has_token else None
        self._opener = EnvelopeOpener(self._keys, is_unsecured=vast.is_unsecured)

    def check_webhook_url(self, url: str) -> None:
        """Raises RequestRejected for an address that cannot be a webhook's."""
        try:
            self._addresses.check_form(url)
        except InputRejected as error:
            raise RequestRejected([Problem(error.message, field="input.webhook.url", type=error.code)]) from None

    def unwrap_vast(self, body: dict[str, Any]) -> dict[str, Any]:
        """The payload of Vast's envelope. Raises EnvelopeRejected, SessionGone or SignatureRejected."""
        return self._opener.open(body)

    async def start(self) -> None:
        """Fetches the autoscaler's public key in the background."""
        if self._keys is not None:
            self._fetching = asyncio.create_task(self._keys.fetch(), name="public-key")

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
        await self._autoscaler_http.aclose()
        await self._sender.close()
