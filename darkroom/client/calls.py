"""Headers, time limits, patience and refusals of calls, the same for both clients. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx

from darkroom.client.errors import RequestRefused, WorkerUnreachable
from darkroom.client.following import pause_before, read_body

# A proxy that the environment names cannot reach this machine for us, and NO_PROXY is often not set.
ASKED_DIRECTLY: Final[Mapping[str, None]] = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
CONNECT_SECONDS: Final = 10.0
SILENCE_SECONDS: Final = 60.0  # four times a stream's keep-alive
PATIENCE_SECONDS: Final = 300.0


class Patience:
    """Time left to wait for a worker that asks for patience with Retry-After."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._num_away = 0

    def pause_after(self, refused: RequestRefused) -> float:
        """Return the seconds until the next try. Raises the refusal if there is to be none."""
        pause = refused.retry_after_seconds
        if refused.status not in (429, 503) or pause is None or pause > self._seconds:
            raise refused
        self._seconds -= max(pause, 0.1)
        return pause

    def pause_while_away(self, error: Exception) -> float:
        """Return the seconds until the next try at a worker that answered before. Raises WorkerUnreachable."""
        pause = pause_before(self._num_away)
        if pause > self._seconds:
            raise WorkerUnreachable(str(error) or type(error).__name__) from None
        self._num_away += 1
        self._seconds -= pause
        return pause


def headers_of(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def timeout() -> httpx.Timeout:
    return httpx.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS, write=SILENCE_SECONDS)


def answer_of(response: httpx.Response, *, is_of_job: bool = False) -> dict[str, Any]:
    """Return the JSON object of an answer, `items` in it for a list. Raises RequestRefused.

    `is_of_job`: the answer to a job that failed is none.
    """
    body = read_body(response.content)
    is_job = is_of_job and bool(body.get("timings"))  # a refusal has the form of a result without times
    if response.is_success or is_job:
        return body
    retry_after = response.headers.get("retry-after", "")
    raise RequestRefused(response.status_code, body, float(retry_after) if retry_after.isdecimal() else None)
