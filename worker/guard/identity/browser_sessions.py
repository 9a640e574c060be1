"""BrowserSessions: sessions of browsers that have sent an API key once, and send a cookie from then on.

A page that the worker only passes on (ComfyUI's web interface) adds no header to its requests. Its browser gets a
random token as a cookie instead. The key stays in the memory of this process and is checked again at every request, so
that a session ends with its key. A restart ends all of them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from pydantic import SecretStr

LIFETIME_SECONDS: Final = 12 * 3600
MAX_SESSIONS: Final = 1000
TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class _Session:
    secret: SecretStr
    ends_at: float  # monotonic seconds


class BrowserSessions:
    """Open sessions by the hash of their token. The oldest ends when there are more than `MAX_SESSIONS`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}

    def open(self, secret: SecretStr) -> str:
        """Return the token of a new session with this API key, which the caller has checked."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[_digest(token)] = _Session(secret, self._clock() + LIFETIME_SECONDS)
        return token

    def find(self, token: str) -> SecretStr | None:
        """Return the API key of a session; None for an unknown one and for one that has ended."""
        session = self._sessions.get(_digest(token))
        if session is None or session.ends_at <= self._clock():
            self.close(token)
            return None
        return session.secret

    def close(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)


def _digest(token: str) -> bytes:
    return sha256(token.encode(errors="surrogatepass")).digest()
