"""GET /webhooks, POST /webhooks/…: the outbox, redelivery on request, and a test of a receiver.

No reply contains a secret: no key, no body, no query of an address.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from darkroom.worker.api.body_sizes import takes_little
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.webhooks import ReceiverTested, Redelivered, WebhookEntry, WebhookPage
from darkroom.worker.api.results import check_operator, services_of
from darkroom.worker.guard.safe_address import shown_url
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.storage.webhook_rows import WebhookRow, WebhookState

MAX_PAGE = 1000


def _caller_may(request: Request) -> None:
    """Require an operator: the rows hold the addresses of all receivers, some with a secret in their path."""
    check_operator(request)


router = APIRouter(tags=["webhooks"], dependencies=[Depends(_caller_may)], responses=refusals(401, 403, 422))


class Redelivery(RequestModel):
    """Replacements for what was erased with a delivery: the secret (empty: no signature), the URL with its query."""

    model_config = ConfigDict(extra="forbid")

    secret: str | None = None
    url: str = ""


class ReceiverTest(RequestModel):
    """Receiver to test; without `url` the worker's own. Another is signed with `secret`, never the worker's own."""

    model_config = ConfigDict(extra="forbid")

    url: str = ""
    secret: str | None = None
    timeout: float | None = Field(default=None, gt=0, le=600)


@router.get("/webhooks", operation_id="list_webhooks", response_model=None, responses={200: {"model": WebhookPage}})
async def webhooks(
    request: Request,
    state: WebhookState | None = None,
    limit: int = Query(100, ge=1, le=MAX_PAGE),
    before_ms: int | None = Query(None, ge=0, lt=2**63),
) -> dict[str, Any]:
    """Return the newest webhooks, optionally those in one state; `before_ms` (a `created_ms`) continues from there."""
    rows, counts = await services_of(request).deliveries.outbox.page(state, limit, before_ms)
    return {"counts": counts, "webhooks": [_shown(row) for row in rows]}


@router.post("/webhooks/redeliver", operation_id="redeliver_dead_webhooks", response_model=Redelivered)
@takes_little
async def redeliver_dead(request: Request) -> dict[str, int]:
    """Schedule every dead webhook for delivery now, with its full number of tries."""
    return {"redelivered": await services_of(request).deliveries.outbox.redeliver_dead()}


@router.post("/webhooks/test", operation_id="test_webhook", response_model=ReceiverTested)
@takes_little
async def try_receiver(asked: ReceiverTest, request: Request) -> JSONResponse:
    """Send a test notice once and return the outcome of its delivery."""
    services = services_of(request)
    if asked.url and asked.url != services.deliveries.webhook.url:
        services.deliveries.check_webhook_url(asked.url)
    if not asked.url and not services.deliveries.webhook.url:
        return JSONResponse({"delivered": False, "error": "give `url`: the worker has none"}, status_code=422)
    outcome = await services.deliveries.outbox.try_once(asked.url, asked.secret, asked.timeout)
    return JSONResponse({"delivered": outcome.is_delivered, "error": outcome.error or None})


@router.post(
    "/webhooks/{webhook_id}/redeliver",
    operation_id="redeliver_webhook",
    status_code=202,
    response_model=None,
    responses={**refusals(404, 409), 202: {"model": WebhookEntry}},
)
@takes_little
async def redeliver(webhook_id: str, request: Request, asked: Redelivery | None = None) -> dict[str, Any]:
    """Schedule one webhook for delivery now, in any state, with its full number of tries."""
    asked = asked or Redelivery()
    return _shown(await services_of(request).deliveries.outbox.redeliver(webhook_id, asked.secret, asked.url))


def _shown(row: WebhookRow) -> dict[str, object]:
    return {
        "id": row.id,
        "request_id": row.job_id,
        "url": shown_url(row.url),
        "state": row.state,
        "attempts": row.attempts,
        "created_ms": row.created_ms,
        "tried_ms": row.tried_ms,
        "next_try_ms": row.next_at_ms if row.state == WebhookState.PENDING else None,
        "last_error": row.last_error or None,
        "is_signed": row.is_signed,
    }
