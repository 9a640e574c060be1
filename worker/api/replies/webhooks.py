"""Replies about webhooks."""

from __future__ import annotations

from darkroom.worker.api.replies.reply import Reply
from darkroom.worker.storage.webhook_rows import WebhookState


class WebhookEntry(Reply):
    """A webhook on disk, without its secrets."""

    id: str
    request_id: str
    url: str
    state: WebhookState
    attempts: int
    created_ms: int
    tried_ms: int | None
    next_try_ms: int | None
    last_error: str | None
    is_signed: bool


class WebhookPage(Reply):
    """Webhooks, the newest first, and the number in each state."""

    counts: dict[str, int]
    webhooks: list[WebhookEntry]


class Redelivered(Reply):
    """Number of webhooks that are due now."""

    redelivered: int


class ReceiverTested(Reply):
    """Outcome of a test of a webhook's receiver."""

    delivered: bool
    error: str | None
