"""Edges: everything that meets the outside of the machine, put together from the settings."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import httpx

from worker.engine.client import EngineClient
from worker.errors import Problem, RequestRejected, Unauthorized
from worker.jobs.outbox import Sender
from worker.jobs.plain_stages import LocalOutputs, NoInputs
from worker.jobs.stages import InputStage, OutputStage
from worker.jobs.store import JobStore, WebhookRow
from worker.services import RequestGuard
from worker.settings import AuthConfig, Settings

LOOPBACK = frozenset({"127.0.0.1", "::1"})


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


class PlainGuard:
    """With MASTER_TOKEN set: loopback, an API key, or UNSECURED."""

    def __init__(self, config: AuthConfig) -> None:
        self._config = config

    def check(self, client_host: str | None, authorization: str | None, has_vast_envelope: bool) -> None:
        if not self._config.master_token.get_secret_value() or self._config.is_unsecured:
            return
        given = (authorization or "").removeprefix("Bearer ").encode()
        is_key = any(hmac.compare_digest(given, key.get_secret_value().encode()) for key in self._config.api_keys)
        if not is_key and client_host not in LOOPBACK:
            raise Unauthorized("This worker takes signed requests, or those with an API key")


class Edges:
    def __init__(self, settings: Settings) -> None:
        self._sender = PlainSender()
        self.webhook_sender: Sender = self._sender
        self.inputs: InputStage = NoInputs()
        self.outputs: OutputStage = LocalOutputs()
        self.guard: RequestGuard = PlainGuard(settings.auth_config())

    def check_webhook_url(self, url: str) -> None:
        """Raises RequestRejected for an address that cannot be a webhook."""
        if not url.startswith(("http://", "https://")):
            raise RequestRejected([Problem("must be an http:// or https:// address", field="input.webhook.url")])

    def unwrap_vast(self, body: dict[str, Any]) -> dict[str, Any]:
        """The payload of Vast's envelope. Raises RequestRejected."""
        missing = [name for name in ("auth_data", "payload") if not isinstance(body.get(name), dict)]
        if missing:
            raise RequestRejected([Problem("field missing", field=name) for name in missing])
        payload: dict[str, Any] = body["payload"]
        return payload

    async def qualify(self, engine: EngineClient, store: JobStore) -> dict[str, Any]:
        return {"verdict": "skipped", "reason": "off"}

    async def close(self) -> None:
        await self._sender.close()
