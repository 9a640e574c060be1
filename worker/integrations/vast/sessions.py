"""SessionStore: Vast's sessions. A client reserves a worker for a while; each request adds one lifetime.

Expiry is decided on the monotonic clock; clients get Unix time. Closing is the caller's work: `close` only removes the
session and returns it.
"""

from __future__ import annotations

import math
import secrets
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from darkroom.worker.errors import SessionGone
from darkroom.worker.guard.identity.caller import Identity

ID_LETTERS: Final = string.ascii_letters + string.digits
ID_LENGTH: Final = 13
DEFAULT_LIFETIME_SECONDS: Final = 60.0


@dataclass(slots=True)
class Session:
    """Open session. `job_ids` are the jobs that were sent within it, `maker` is the caller who opened it.

    `ends_at_latest` bounds `ends`, however often the session is used.
    """

    id: str
    auth_data: Mapping[str, Any]
    lifetime_seconds: float
    created_at: float
    ends: float
    on_close_route: str | None
    on_close_payload: Any
    maker: Identity
    ends_at_latest: float
    job_ids: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return f"Session(request_idx={self.auth_data.get('request_idx')!r})"


class SessionStore:
    """Open sessions, each at most `max_seconds` long. `max_sessions` 0: no limit. `now` is the monotonic clock."""

    def __init__(
        self, max_sessions: int, max_seconds: float = math.inf, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_sessions = max_sessions
        self._max_seconds = max_seconds
        self._now = now
        self._sessions: dict[str, Session] = {}

    @property
    def is_full(self) -> bool:
        return 0 < self._max_sessions <= len(self._sessions)

    def open(
        self,
        auth_data: Mapping[str, Any],
        lifetime_seconds: float,
        on_close_route: str | None,
        on_close_payload: Any,
        maker: Identity,
    ) -> Session:
        """Open a session; a lifetime beyond the longest one is cut to that."""
        lifetime_seconds, now = min(lifetime_seconds, self._max_seconds), self._now()
        session = Session(
            id="".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)),
            auth_data=dict(auth_data),
            lifetime_seconds=lifetime_seconds,
            created_at=time.time(),
            ends=now + lifetime_seconds,
            on_close_route=on_close_route,
            on_close_payload=on_close_payload,
            maker=maker,
            ends_at_latest=now + self._max_seconds,
        )
        self._sessions[session.id] = session
        return session

    def find(self, session_id: object) -> Session | None:
        """Return an open session; one that has expired and was not collected yet is still open."""
        return self._sessions.get(session_id) if isinstance(session_id, str) else None

    def touch(self, session_id: object) -> Session:
        """Extend a session by one lifetime for a request, up to the longest life. Raises SessionGone."""
        session = self.find(session_id)
        if session is None:
            raise SessionGone("invalid session")
        session.ends = min(session.ends + session.lifetime_seconds, session.ends_at_latest)
        return session

    def pop(self, session_id: str) -> Session | None:
        """Remove a session and return it; None when it is closed already."""
        return self._sessions.pop(session_id, None)

    def expired(self) -> list[Session]:
        now = self._now()
        return [session for session in self._sessions.values() if session.ends <= now]

    def all(self) -> list[Session]:
        return list(self._sessions.values())

    def expiration_of(self, session: Session) -> float:
        """Return the end of a session in Unix seconds."""
        return time.time() + session.ends - self._now()
