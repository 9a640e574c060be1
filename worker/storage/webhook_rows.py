"""The rows of the webhook outbox: insertion, listing, redelivery and removal. SQL without a connection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from darkroom.worker.guard.url_secrets import is_erased, without_url_secrets
from darkroom.worker.storage.database import WEBHOOKS, storable

Write = tuple[sa.Executable, Mapping[str, Any]]


class WebhookState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"  # no more tries, kept for redelivery


LONGEST_PAUSE_MS = 6 * 3600 * 1000
"""The longest wait between two tries. A longer one means that the clock was set back, and the entry is due."""


def is_due(now_ms: int) -> sa.ColumnElement[bool]:
    """Return the condition of entries that are to be sent now."""
    next_at_ms = WEBHOOKS.c.next_at_ms
    is_time = sa.or_(next_at_ms <= now_ms, next_at_ms > now_ms + LONGEST_PAUSE_MS)
    return sa.and_(WEBHOOKS.c.state == WebhookState.PENDING.value, is_time)


class SecretSource(StrEnum):
    """The owner of the secret that signs a webhook.

    The worker's own secret is read from the settings at each try and never stored.
    """

    NONE = "none"
    REQUEST = "request"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """One entry of the outbox. `is_trusted`: the address came from the operator, not from a request.

    `secret` is the request's, until the webhook has been delivered. `traceparent` is set for a try and not stored.
    """

    id: str
    job_id: str
    url: str
    body: bytes
    secret: str | None
    timeout_seconds: float
    is_trusted: bool
    state: str
    attempts: int
    created_ms: int
    next_at_ms: int
    last_error: str = ""
    secret_source: str = SecretSource.REQUEST
    tried_ms: int | None = None
    traceparent: str = ""

    def __repr__(self) -> str:
        return f"WebhookRow({self.id}, {self.state}, attempts={self.attempts})"

    @property
    def is_signed(self) -> bool:
        """True if a request's secret signs the webhook, or the operator's if the address is the operator's."""
        is_operators = self.secret_source == SecretSource.ENVIRONMENT and self.is_trusted
        return is_operators or self.secret_source == SecretSource.REQUEST

    @property
    def has_lost_its_secret(self) -> bool:
        """True if the webhook was signed with the request's secret, which has been erased."""
        return self.secret_source == SecretSource.REQUEST and self.secret is None

    @property
    def has_lost_its_url(self) -> bool:
        """True if the user or the query of its address was erased when it was delivered."""
        return is_erased(self.url)


STORED = tuple(name for name in WebhookRow.__slots__ if name != "traceparent")
_INSERT = sa.text(  # again after a commit whose reply was lost
    f"INSERT INTO webhooks ({', '.join(STORED)}) VALUES ({', '.join(f':{name}' for name in STORED)}) "
    "ON CONFLICT (id) DO NOTHING"
)


def webhook_insert(row: WebhookRow) -> Write:
    """Return the write that inserts an entry into the outbox, for `JobStore.save` with the job's last change."""
    return _INSERT, {name: getattr(row, name) for name in STORED}


def webhook_update(row: WebhookRow) -> Write:
    """Return the write that stores an outcome. A delivered entry loses its secrets in the same transaction."""
    is_delivered = row.state == WebhookState.DELIVERED
    values = {
        "url": without_url_secrets(row.url) if is_delivered else row.url,
        "state": row.state,
        "attempts": row.attempts,
        "next_at_ms": row.next_at_ms,
        "last_error": storable(row.last_error),
        "tried_ms": row.tried_ms,
        "secret": None if is_delivered else row.secret,
        "secret_source": row.secret_source,
    }
    return sa.update(WEBHOOKS).where(WEBHOOKS.c.id == sa.bindparam("row_id")).values(values), {"row_id": row.id}


def webhooks_query(state: WebhookState | None, limit: int, before_ms: int | None) -> sa.Select[object]:
    """Return a query of the newest entries made before a time, optionally only those of one state."""
    query = sa.select(WEBHOOKS).order_by(WEBHOOKS.c.created_ms.desc(), WEBHOOKS.c.id).limit(limit)
    if state is not None:
        query = query.where(WEBHOOKS.c.state == state.value)
    return query if before_ms is None else query.where(WEBHOOKS.c.created_ms < before_ms)


def webhook_counts_query() -> sa.Select[Any]:
    return sa.select(WEBHOOKS.c.state, sa.func.count()).group_by(WEBHOOKS.c.state)


def revive_all(now_ms: int) -> Write:
    """Return the write that makes every dead entry due now, with a fresh set of tries."""
    revived = {"state": WebhookState.PENDING.value, "attempts": 0, "next_at_ms": now_ms}
    return sa.update(WEBHOOKS).where(WEBHOOKS.c.state == WebhookState.DEAD.value).values(revived), {}


def forget_dead_before(time_ms: int) -> Write:
    """Return the write that removes dead entries whose last try was before a time, including their secrets."""
    is_old = sa.func.coalesce(WEBHOOKS.c.tried_ms, WEBHOOKS.c.created_ms) < sa.bindparam("gone_before")
    dead = WEBHOOKS.c.state == WebhookState.DEAD.value
    return sa.delete(WEBHOOKS).where(dead & is_old), {"gone_before": time_ms}
