"""ResultStream: a request followed to its result by server-sent events, also when the connection drops.

The client names its job, so that it can ask for it again: after a drop it takes the stream up with `Last-Event-ID`, and
sends the same request once more if the front never had it. Either way the job runs once.
"""

from __future__ import annotations

import json
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import httpx
from httpx_sse import EventSource

from worker.backoff import Backoff
from worker.worker_client import worker_client

BACKOFF = Backoff(first_seconds=0.5, longest_seconds=8.0)  # starts anew with every received event
MAX_FAILURES = 8
SILENCE_SECONDS = 60.0  # four times the front's keep-alive
NOT_NOW = frozenset({502, 503, 504})

OnEvent = Callable[[Mapping[str, Any]], None]


class WorkerUnreachable(Exception):
    """The front could not be reached, or not again; `reason` is the last failure."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Dropped(Exception):
    """The connection ended before the result came."""


class ResultStream:
    def __init__(
        self,
        url: str,
        request: Mapping[str, Any],
        on_event: OnEvent,
        *,
        api_key: str = "",
        verify: ssl.SSLContext | bool = True,
        pause: Any = time.sleep,
    ) -> None:
        """Prepare the stream of one request.

        `request` is the `input` object; `on_event` gets every event but the result; `pause` sleeps. `verify` is the
        verification of the server's certificate, as in httpx.
        """
        self._url = url.rstrip("/")
        self._input = {"request_id": str(uuid.uuid4()), **request}
        self._on_event = on_event
        self._api_key = api_key
        self._verify = verify
        self._pause = pause
        self._last_id = ""
        self._was_taken = False
        self._num_failures = 0

    def run(self) -> dict[str, Any]:
        """Submit the request and return the result envelope, or that of a refusal. Raises WorkerUnreachable."""
        timeout = httpx.Timeout(10.0, read=SILENCE_SECONDS)
        with worker_client(api_key=self._api_key, timeout=timeout, verify=self._verify) as http:
            while True:
                try:
                    return self._follow(http)
                except (httpx.TransportError, _Dropped) as error:
                    self._wait_after(error)

    def _wait_after(self, error: Exception) -> None:
        is_first_contact = not self._was_taken and isinstance(error, httpx.ConnectError)
        if is_first_contact or self._num_failures >= MAX_FAILURES:
            raise WorkerUnreachable(str(error)) from None
        self._on_event({"message": "the connection dropped; trying again"})
        self._num_failures += 1
        self._pause(BACKOFF.seconds(self._num_failures))

    def _follow(self, http: httpx.Client) -> dict[str, Any]:
        with self._opened(http) as response:
            if response.status_code == 404 and self._was_taken:
                self._was_taken = False  # a front that has nothing of it: it is sent again, under the same id
                raise _Dropped("the job is unknown")
            if response.status_code != 200:
                response.read()
                if response.status_code in NOT_NOW and self._was_taken:
                    raise _Dropped(f"the front answers {response.status_code}")
                return _refusal(response)
            for event in EventSource(response).iter_sse():
                if not event.data:  # a keep-alive
                    continue
                self._was_taken, self._num_failures, self._last_id = True, 0, event.id
                data: dict[str, Any] = event.json()
                if data.get("status") == "final_result":
                    result: dict[str, Any] = data["result"]
                    return result
                self._on_event(data)
        raise _Dropped("the stream ended early")

    def _opened(self, http: httpx.Client) -> Any:
        headers = {"Last-Event-ID": self._last_id} if self._last_id else {}
        if self._was_taken:
            return http.stream("GET", f"{self._url}/stream/{self._input['request_id']}", headers=headers)
        return http.stream("POST", f"{self._url}/generate/stream", json={"input": self._input}, headers=headers)


def _refusal(response: httpx.Response) -> dict[str, object]:
    try:
        refused = response.json()
    except json.JSONDecodeError:
        refused = None
    if not isinstance(refused, dict):
        return {"message": f"the front answered {response.status_code}"}
    return refused
