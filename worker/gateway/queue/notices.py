"""Notices: what the gateways of one database tell each other: that a job waits, was cancelled, or has progressed.

PostgreSQL carries them (LISTEN and NOTIFY), to one connection of each gateway. A gateway with SQLite is alone.
is told while a connection is lost is lost: whoever listens is told when it is there again, and looks then.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Final

import sqlalchemy as sa
import structlog

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.errors import DatabaseUnreachable
from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.json.values import WRONG_SHAPE
from darkroom.worker.storage.postgres_notices import ListeningFailed, notices_of

MAX_PAYLOAD: Final = 7900  # bytes: PostgreSQL takes less than 8000
SEND_SECONDS: Final = 0.2
"""Seconds for which progress is gathered into one statement."""

MAX_UNSENT: Final = 10_000
AGAIN: Final = Backoff(first_seconds=0.2, longest_seconds=5.0, jitter=0.3)
SEND: Final = sa.text("SELECT pg_notify(:channel, payload) FROM unnest(CAST(:payloads AS text[])) AS payload")

log = structlog.get_logger("gateway")

Handle = Callable[[str, list[str]], None]
"""Takes the kind of a notice, and its words."""


class Notices:
    """Owner of the connection that listens, and of what is to be sent.

    `on_notice` gets what others have sent. `on_gap` is called after a time in which nothing was heard.
    """

    def __init__(self, database: GatewayDatabase, on_notice: Handle, on_gap: Callable[[], None]) -> None:
        self._database = database
        self._on_notice = on_notice
        self._on_gap = on_gap
        self._origin = secrets.token_hex(4)
        self._unsent: deque[str] = deque(maxlen=MAX_UNSENT)
        self._counted: Counter[tuple[str, str]] = Counter()
        self._has_unsent = asyncio.Event()
        self.is_heard = asyncio.Event()  # set once others are heard for the first time
        self.channel = f"darkroom_{sha256(database.config.schema_name.encode()).hexdigest()[:16]}"

    def payload(self, kind: str, *words: str) -> str | None:
        """Return a notice as a statement sends it; None where nobody listens."""
        return self._text(kind, words) if self._database.is_postgres else None

    def send_soon(self, kind: str, *words: str) -> None:
        """Send a notice with the next ones. One that is too long is not sent."""
        text = self._text(kind, words)
        if self._database.is_postgres and len(text.encode()) <= MAX_PAYLOAD:
            self._unsent.append(text)
            self._has_unsent.set()

    def count_soon(self, kind: str, word: str, num: int) -> None:
        """Send a notice of how often something has happened since the last one."""
        if self._database.is_postgres:
            self._counted[kind, word] += num
            self._has_unsent.set()

    async def send_forever(self) -> None:
        """Send what was gathered, in one statement at a time."""
        while True:
            await self._has_unsent.wait()
            await asyncio.sleep(SEND_SECONDS)
            self._has_unsent.clear()
            counted = (self._text(kind, (word, str(num))) for (kind, word), num in self._counted.items())
            payloads = [*counted, *dict.fromkeys(self._unsent)]
            self._unsent.clear()
            self._counted.clear()
            try:
                await self._database.run(partial(self._send, payloads), is_single=True)
            except DatabaseUnreachable as error:
                log.warning("notices not sent", reason=error.message)
            except Exception:  # noqa: BLE001 - the loop: what cannot be sent must not end it
                log.exception("notices not sent")

    async def hear_forever(self) -> None:
        """Pass on what others send. After a break there is a gap."""
        if not self._database.is_postgres:
            self.is_heard.set()
            return
        num_failures = 0
        while True:
            try:
                async for payload in notices_of(self._database.config, self.channel):
                    if payload is None:
                        num_failures = 0
                        self.is_heard.set()
                        self._on_gap()
                    else:
                        self._hear(payload)
            except ListeningFailed as error:
                num_failures += 1
                if num_failures == 1:
                    log.warning("notices are not heard", reason=str(error))
            except Exception:  # noqa: BLE001 - the loop: it begins again with a connection
                num_failures += 1
                log.exception("notices are not heard")
            await asyncio.sleep(AGAIN.seconds(max(1, num_failures)))

    def _send(self, payloads: list[str], connection: sa.Connection) -> None:
        connection.execute(SEND, {"channel": self.channel, "payloads": payloads})

    def _hear(self, payload: str) -> None:
        try:
            origin, kind, *words = json.loads(payload)
            if origin != self._origin:
                self._on_notice(kind, words)
        except WRONG_SHAPE as error:  # of another version, or of somebody else who may use the database
            log.warning("notice not understood", reason=str(error))

    def _text(self, kind: str, words: Sequence[str]) -> str:
        return json.dumps([self._origin, kind, *words], separators=(",", ":"))
