"""VastAutoscaler: keeps Vast's ledger from the front's reports, holds the sessions, and runs the reports.

Loaded means: the front accepts jobs, its speed is known, and the key to verify signatures has been fetched.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from darkroom.contract.graph.cost import UNIT_COST
from darkroom.worker.autoscaler.autoscaler import Caller, checked_speed
from darkroom.worker.autoscaler.envelope import EnvelopeRejected
from darkroom.worker.errors import (
    CallerError,
    Problem,
    SessionGone,
    TooManySessions,
    TryLater,
    Unauthorized,
    WorkerError,
)
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.integrations.vast.envelope import Envelope, caller_of
from darkroom.worker.integrations.vast.ledger import Ending, Entry, Ledger
from darkroom.worker.integrations.vast.listener import PlainListener
from darkroom.worker.integrations.vast.public_key import PublicKeySource
from darkroom.worker.integrations.vast.reports import Reporter
from darkroom.worker.integrations.vast.sessions import DEFAULT_LIFETIME_SECONDS, Session, SessionStore
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.platforms import VastTiming
from darkroom.worker.storage.job import JobState

ON_CLOSE_SECONDS: Final = 10.0
LAST_REPORT_SECONDS: Final = 5.0
ANEW_SECONDS: Final = 1.0
ENDINGS: Final[Mapping[JobState, Ending]] = {JobState.COMPLETED: Ending.SUCCESS, JobState.CANCELLED: Ending.CANCELLED}

PostToSelf = Callable[[str, Mapping[str, Any], Identity], Awaitable[None]]

log = structlog.get_logger("vast")


@dataclass(frozen=True, slots=True)
class Attachments:
    """Parts from the HTTP application: a function that posts to itself, and the listener for `/session/end` alone."""

    post_to_self: PostToSelf
    listener: PlainListener


class VastAutoscaler:
    """Autoscaler for Vast. `keys` None: signatures are not checked. `cancel_job` ends a job of a closed session."""

    def __init__(
        self,
        reporter: Reporter,
        ledger: Ledger,
        sessions: SessionStore,
        keys: PublicKeySource | None,
        cancel_job: Callable[[str], None],
        timing: VastTiming,
    ) -> None:
        self._reporter = reporter
        self._ledger = ledger
        self._keys = keys
        self._cancel_job = cancel_job
        self._timing = timing
        self._began = time.monotonic()
        self._speed = 0.0
        self._front_error = ""
        self._key_error = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._attached: Attachments | None = None
        self._session_of: dict[str, Session] = {}
        self._seen_indices: dict[int, None] = {}
        self.sessions = sessions

    def attach(self, attachments: Attachments) -> None:
        """Set the attachments; must be called before `start()`."""
        self._attached = attachments

    @property
    def plain_port(self) -> int:
        """Port of `/session/end` without TLS, once started."""
        return 0 if self._attached is None else self._attached.listener.port

    # the interface of every autoscaler

    async def start(self) -> None:
        if self._attached is not None:
            await self._attached.listener.start()
        self._watch("vast-reports", self._reporter.run)
        self._watch("vast-sessions", self._collect)
        if self._keys is not None:
            self._watch("vast-public-key", partial(self._keys.poll, self._key_failed, self._key_fetched))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reporter.flush(), LAST_REPORT_SECONDS)
        if self._attached is not None:
            await self._attached.listener.stop()

    def loaded(self, speed: float) -> None:
        self._speed = checked_speed(speed)
        self._show_status()

    def error_set(self, message: str) -> None:
        self._front_error = message
        self._show_status()

    def error_cleared(self) -> None:
        self._front_error = ""
        self._show_status()

    def draining(self) -> None:
        """Do nothing: new requests are refused, and counted as rejected."""

    def job_accepted(self, job_id: str, cost: float, caller: Caller | None) -> None:
        known = caller or Caller()
        self._note_repeat(known)
        session = self.sessions.find(known.session_id)
        if session is not None:
            session.job_ids.add(job_id)
            self._session_of[job_id] = session
        self._ledger.accept(job_id, Entry(known, cost, entered_at=time.time()))

    def job_started(self, job_id: str) -> None:
        self._ledger.start(job_id, time.time())

    def job_ended(self, job_id: str, state: JobState) -> None:
        """Record the end of a job: unless it completed or was cancelled, it is an error, with any HTTP status."""
        session = self._session_of.pop(job_id, None)
        if session is not None:
            session.job_ids.discard(job_id)
        self._ledger.end(job_id, ENDINGS.get(state, Ending.ERROR), time.time())

    def request_refused(self, cost: float, caller: Caller | None, error: WorkerError) -> None:
        """Record a refusal: rejected by the worker, served (an invalid request), or else an error of ours."""
        if caller is None or isinstance(error, EnvelopeRejected | SessionGone):
            return  # as with Vast's own worker
        now = time.time()
        if isinstance(error, TryLater | Unauthorized):
            self._ledger.refuse(Entry(caller, cost, entered_at=now), Ending.REJECTED)
            return
        answered = Entry(caller, 0.0, entered_at=now, started_at=now, ended_at=now)
        self._ledger.refuse(answered, Ending.SUCCESS if isinstance(error, CallerError) else Ending.ERROR)

    # sessions

    def create_session(self, envelope: Envelope, maker: Identity) -> Session:
        """Open a session. Raises EnvelopeRejected for an invalid payload, TooManySessions."""
        lifetime = _lifetime(envelope.payload)
        route = envelope.payload.get("on_close_route")
        entry = Entry(caller_of({"auth_data": envelope.auth_data}), _cost(envelope), is_session=True)
        entry.entered_at = entry.started_at = time.time()
        if self.sessions.is_full:
            self._ledger.refuse(entry, Ending.REJECTED)
            raise TooManySessions("The worker has the maximum number of sessions")
        session = self.sessions.open(
            envelope.auth_data,
            lifetime,
            str(route) if route is not None else None,
            envelope.payload.get("on_close_payload") if route is not None else None,
            maker,
        )
        self._ledger.accept(session.id, entry)
        return session

    async def close_session(self, session: Session) -> bool:
        """End a session's jobs and post its final request, within ten seconds. Return False if it is closed already."""
        if self.sessions.pop(session.id) is None:
            return False
        for job_id in list(session.job_ids):
            self._cancel_job(job_id)
        if session.on_close_route and self._attached is not None:
            payload = session.on_close_payload
            body = dict(payload) if isinstance(payload, Mapping) else {} if payload is None else {"payload": payload}
            body.setdefault("session_id", session.id)
            try:
                posting = self._attached.post_to_self(session.on_close_route, body, session.maker)
                await asyncio.wait_for(posting, ON_CLOSE_SECONDS)
            except TimeoutError:
                log.warning("session close request timed out", seconds=ON_CLOSE_SECONDS)
            except Exception:  # noqa: BLE001 - the session's final request: its creator may ask for anything
                log.exception("session close request failed")
        self._ledger.end(session.id, Ending.SUCCESS, time.time())
        return True

    def _watch(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        self._tasks.append(asyncio.create_task(restart_forever(name, run), name=name))

    async def _collect(self) -> None:
        while True:
            await asyncio.sleep(self._timing.collect_sessions)
            expired = self.sessions.expired()
            await asyncio.gather(*(self.close_session(session) for session in expired))

    # the status

    def _key_failed(self, reason: str) -> None:
        self._key_error = reason
        self._show_status()

    def _key_fetched(self) -> None:
        self._key_error = ""
        self._show_status()

    def _show_status(self) -> None:
        status = self._reporter.status
        status.fail(self._front_error or self._key_error)
        has_key = self._keys is None or self._keys.key is not None
        if self._speed and has_key:
            was_loaded = status.is_loaded
            status.load(self._speed, max(time.monotonic() - self._began, 0.001))
            if not was_loaded:
                log.info("loaded", seconds=round(status.load_seconds, 2), speed=round(self._speed, 2))
        self._reporter.touch()

    def _note_repeat(self, caller: Caller) -> None:
        index = caller.request_idx
        if index is None or caller.session_id is not None:
            return
        if index in self._seen_indices:
            log.warning("request index repeated", request_idx=index)
        self._seen_indices[index] = None
        if len(self._seen_indices) > 10_000:
            del self._seen_indices[next(iter(self._seen_indices))]


async def restart_forever(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Run a task to its end, and restart it after an error: Vast must keep getting a serving worker's reports."""
    while True:
        try:
            return await run()
        except Exception:  # noqa: BLE001 - a task of the autoscaler: nobody awaits it, so only this reports the error
            log.exception("autoscaler task failed", task=name)
            await asyncio.sleep(ANEW_SECONDS)


def _lifetime(payload: JsonObject) -> float:
    value = payload.get("lifetime", DEFAULT_LIFETIME_SECONDS)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        problem = Problem("must be a number of seconds above 0", field="payload.lifetime")
        raise EnvelopeRejected([problem], {"payload": {"lifetime": problem.message}})
    return float(value)


def _cost(envelope: Envelope) -> float:
    """Return a session's cost as given by its creator; a text counts too."""
    try:
        cost = float(envelope.auth_data.get("cost", UNIT_COST))
    except (TypeError, ValueError):
        return UNIT_COST
    return cost if 0 <= cost < math.inf else UNIT_COST
