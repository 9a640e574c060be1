"""WorkerTokens: the tokens by which workers ask a gateway for jobs. The database has their SHA-256 digests alone."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from hashlib import sha256
from typing import Final

import sqlalchemy as sa
from pydantic import BaseModel

from darkroom.worker.errors import LimitReached, Problem, RequestRejected, WorkerTokenNotFound, WrongKey
from darkroom.worker.gateway.job_records import JobRecords
from darkroom.worker.settings.api_keys import NAME

PREFIX: Final = "worker-"
SECRET_BYTES: Final = 32
SECRET_LENGTH: Final = len(PREFIX) + 43  # of so many bytes in base64, without padding
UNKNOWN_TOKEN: Final = "Authorization: this worker token is unknown or was revoked"
FRESH_SECONDS: Final = 2.0
"""Seconds for which a token that was found is not looked up again: so long a revoked one is good."""

MAX_KNOWN: Final = 10_000
MAX_GUESSES: Final = 20
"""Unknown tokens of one address that are looked up in `GUESS_SECONDS`."""

GUESS_SECONDS: Final = 10.0
SEEN_MS: Final = 60_000  # between two notes that a token is used

TOKENS: Final = sa.table(
    "worker_tokens",
    sa.column("name", sa.Text),
    sa.column("digest", sa.Text),
    *(sa.column(name, sa.BigInteger) for name in ("made_ms", "seen_ms", "revoked_ms")),
)
MAKE: Final = sa.text(
    "INSERT INTO worker_tokens AS held (name, digest, made_ms) VALUES (:name, :digest, :now_ms) "
    "ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, made_ms = excluded.made_ms, seen_ms = NULL, "
    "revoked_ms = NULL WHERE held.revoked_ms IS NOT NULL RETURNING name"
)


class WorkerToken(BaseModel):
    """A token as it is listed, without its secret."""

    name: str
    made_ms: int
    """Time at which it was made, in milliseconds since 1970."""

    seen_ms: int | None = None
    """Time of its last use, to a minute; null for none."""

    revoked_ms: int | None = None
    """Time at which it was revoked; null while it is good."""


class WorkerTokens:
    """Tokens in the schema of all gateways. Every method raises DatabaseUnreachable."""

    def __init__(self, records: JobRecords) -> None:
        self._records = records
        self._guesses: dict[str, int] = {}  # unknown tokens by the address that sent them
        self._guesses_since = time.monotonic()
        self._good: frozenset[str] = frozenset()
        self._good_at = float("-inf")
        self._reading = asyncio.Lock()
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict()  # names by digest, when they were looked up

    async def make(self, name: str) -> str:
        """Make a token and return its secret, which is nowhere else. Raises RequestRejected for a name in use."""
        if not NAME.fullmatch(name):
            message = "name: not usable; expected 1 to 64 letters, digits and . _ -"
            raise RequestRejected([Problem(message, field="name")])
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        values = {"name": name, "digest": _digest(secret), "now_ms": _now_ms()}
        if await self._records.run(lambda connection: connection.execute(MAKE, values).scalar()) is None:
            message = f"name: {name} is in use; expected another one, or revoke that token first"
            raise RequestRejected([Problem(message, field="name", type="name_taken")])
        self._good_at = float("-inf")
        return secret

    async def listed(self) -> list[WorkerToken]:
        """Return all tokens by name, those that were revoked among them."""
        query = sa.select(TOKENS.c.name, TOKENS.c.made_ms, TOKENS.c.seen_ms, TOKENS.c.revoked_ms)
        rows = await self._records.run(lambda connection: connection.execute(query.order_by(TOKENS.c.name)).all())
        return [WorkerToken.model_validate(row._asdict()) for row in rows]

    async def revoke(self, name: str) -> None:
        """End a token: requests with it are refused, here at once and at other gateways within two seconds.

        Raises WorkerTokenNotFound for one that is not there or was revoked before.
        """
        is_it = sa.and_(TOKENS.c.name == name, TOKENS.c.revoked_ms.is_(None))
        revoked = sa.update(TOKENS).where(is_it).values(revoked_ms=_now_ms())
        num = await self._records.run(lambda connection: connection.execute(revoked).rowcount)
        for digest in [digest for digest, (known, _) in self._known.items() if known == name]:
            del self._known[digest]
        if not num:
            raise WorkerTokenNotFound(f"No worker token {name[:64]!r} is in use")

    async def name_of(self, secret: str, address: str) -> str:
        """Return the name of a token. Raises WrongKey for one that is unknown or revoked.

        After so many of those of an address its tokens are compared with a list of the good ones, which is read every
        two seconds at most. Raises LimitReached for one that is not among them.
        """
        if len(secret) != SECRET_LENGTH or not secret.startswith(PREFIX):  # no look at the database for those
            raise WrongKey(UNKNOWN_TOKEN)
        digest = _digest(secret)
        known = self._known.get(digest)
        if known is not None and time.monotonic() - known[1] < FRESH_SECONDS:
            return known[0]
        if known is None and self._has_guessed(address) and digest not in await self._good_digests():
            raise self._too_many_guesses(address)
        name = await self._records.run(lambda connection: _found(connection, digest))
        if name is None:
            self._known.pop(digest, None)
            self._guesses[address] = self._guesses.get(address, 0) + 1
            raise WrongKey(UNKNOWN_TOKEN)
        self._known[digest] = name, time.monotonic()
        self._known.move_to_end(digest)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return name

    async def check_again(self, secret: str) -> None:
        """Check a token that was good when its request came. Raises WrongKey for one that was revoked meanwhile."""
        digest = _digest(secret)
        known = self._known.get(digest)
        if known is not None and time.monotonic() - known[1] < FRESH_SECONDS:
            return
        if await self._records.run(lambda connection: _found(connection, digest)) is None:
            self._known.pop(digest, None)
            raise WrongKey(UNKNOWN_TOKEN)

    def _has_guessed(self, address: str) -> bool:
        now = time.monotonic()
        if now - self._guesses_since > GUESS_SECONDS:
            self._guesses, self._guesses_since = {}, now
        return self._guesses.get(address, 0) >= MAX_GUESSES

    def _too_many_guesses(self, address: str) -> LimitReached:
        left = max(1.0, self._guesses_since + GUESS_SECONDS - time.monotonic())
        unit = f"in {GUESS_SECONDS:.0f} s"
        num = self._guesses[address] + 1
        return LimitReached("unknown_tokens", num, MAX_GUESSES, retry_after_seconds=left, unit=unit)

    async def _good_digests(self) -> frozenset[str]:
        """Return the digests of all good tokens, as they were two seconds ago at most."""
        async with self._reading:
            if time.monotonic() - self._good_at > FRESH_SECONDS:
                query = sa.select(TOKENS.c.digest).where(TOKENS.c.revoked_ms.is_(None))
                found = await self._records.run(lambda connection: connection.execute(query).scalars().all())
                self._good, self._good_at = frozenset(found), time.monotonic()
            return self._good


def _found(connection: sa.Connection, digest: str) -> str | None:
    is_it = sa.and_(TOKENS.c.digest == digest, TOKENS.c.revoked_ms.is_(None))
    row = connection.execute(sa.select(TOKENS.c.name, TOKENS.c.seen_ms).where(is_it)).one_or_none()
    if row is None:
        return None
    now_ms = _now_ms()
    if row.seen_ms is None or now_ms - row.seen_ms > SEEN_MS:
        connection.execute(sa.update(TOKENS).where(is_it).values(seen_ms=now_ms))
    return str(row.name)


def _digest(secret: str) -> str:
    return sha256(secret.encode(errors="surrogatepass")).hexdigest()


def _now_ms() -> int:
    return int(time.time() * 1000)
