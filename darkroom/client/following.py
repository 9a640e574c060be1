"""Following: a job followed to its end over connections that break, as data for either client to act on. Pure.

The request has an id, so it may be sent again: the worker attaches it to the same job. After a break the stream is
taken up with `Last-Event-ID`; a worker that knows nothing of the job gets the request once more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from darkroom.client.errors import JobFailed, RequestRefused, WorkerUnreachable
from darkroom.client.results import Event, Result, read_event

LATER: Final = frozenset({429, 502, 503, 504})
MAX_FAILURES: Final = 8
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 8.0


@dataclass(frozen=True, slots=True)
class Call:
    """HTTP request that is to be made. `body` is JSON."""

    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Following:
    """State of one followed job. `body` is its request; None attaches to the job `job_id` that is there.

    `patience_seconds` bounds the time spent waiting where a worker asks for patience with `Retry-After`, and the time
    for which a worker that has taken the job may be away, as it is while it restarts.
    """

    def __init__(self, job_id: str, body: Mapping[str, Any] | None, patience_seconds: float) -> None:
        self._job_id = job_id
        self._content = None if body is None else json.dumps(body).encode()
        self._patience_seconds = patience_seconds
        self._longest_absence_seconds = patience_seconds
        self._away_seconds: float | None = None  # None until an event has come
        self._was_taken = body is None
        self._last_id = ""
        self._num_failures = 0

    @property
    def was_taken(self) -> bool:
        """True once the worker has answered for this job."""
        return self._was_taken

    def call(self) -> Call:
        """Return the next HTTP request: the job's own, or one for its stream."""
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        if self._was_taken:
            return Call("GET", f"/stream/{quote(self._job_id, safe='')}", headers=headers)
        return Call("POST", "/generate/stream", self._content, {**headers, "Content-Type": "application/json"})

    def received(self, event_id: str, data: Mapping[str, Any]) -> Event:
        """Return the event in the data of a server-sent event."""
        event = read_event(data)
        self._was_taken, self._num_failures, self._last_id = True, 0, event_id or self._last_id
        self._away_seconds = 0.0
        self._job_id = event.job_id or self._job_id
        return event

    def refused(self, status: int, body: Mapping[str, Any], retry_after: str | None) -> float:
        """Return the seconds until the next try. Raises RequestRefused, or WorkerUnreachable."""
        if status == 404 and self._was_taken and self._content is not None:
            self._was_taken = False  # a worker that has nothing of it
            return self.dropped("the job is unknown")
        seconds = _seconds(retry_after)
        if status not in LATER:
            raise RequestRefused(status, body, seconds)
        if self._was_taken:
            return self.dropped(f"the worker answers {status}")
        pause = seconds if seconds is not None else self._pause()
        if pause > self._patience_seconds or self._num_failures >= MAX_FAILURES and seconds is None:
            raise RequestRefused(status, body, seconds)
        self._patience_seconds -= max(pause, 0.1)
        self._num_failures += seconds is None
        return pause

    def dropped(self, reason: str, *, is_refused: bool = False) -> float:
        """Return the seconds until the next try after a broken connection. Raises WorkerUnreachable.

        `is_refused`: the connection was not made at all. A worker that has sent an event keeps the job through its
        restart; one that has sent none may not be there at all.
        """
        if is_refused and not self._was_taken and self._num_failures == 0:
            raise WorkerUnreachable(reason)
        self._num_failures += 1
        pause = self._pause()
        if self._away_seconds is None:
            is_given_up = self._num_failures > MAX_FAILURES
        else:
            self._away_seconds += pause
            is_given_up = self._num_failures > MAX_FAILURES and self._away_seconds > self._longest_absence_seconds
        if is_given_up:
            raise WorkerUnreachable(reason)
        return pause

    def _pause(self) -> float:
        return pause_before(max(0, self._num_failures - 1))


def completed(result: Result) -> Result:
    """Return the result of a job that has completed. Raises JobFailed for one that ended otherwise."""
    if result.status != "completed":
        raise JobFailed(result)
    return result


def pause_before(num_earlier: int) -> float:
    """Return the seconds before a try, after `num_earlier` others in vain."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(num_earlier, 10), LONGEST_PAUSE_SECONDS))


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:  # a date
        return None


def read_body(content: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer, `items` in it for a list; an empty one for anything else."""
    try:
        body = json.loads(content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {"items": body} if isinstance(body, list) else {}
