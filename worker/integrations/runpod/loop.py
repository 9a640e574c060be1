"""Process of the loop of RunPod's own package: `python -m darkroom.worker.integrations.runpod.loop <front's URL>`.

Every job is passed to the front on this machine and followed through its events, which become RunPod's progress
updates. It is a separate process because the package starts a loop, forks a heartbeat and handles the signals: the
front has all of these already. On SIGTERM it accepts no more jobs and finishes those it has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from darkroom.worker.errors import RequestRejected
from darkroom.worker.guard.identity.own_key import read_own_key
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.own_certificate import trusting_context
from darkroom.worker.integrations.runpod.shapes import InputRefused, Translated, result_reply, translate

PROGRESS_SECONDS: Final = 1.0  # at least, between two updates of one job
JOIN_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 300.0  # for a front that cannot accept the job yet: RunPod does not take a job back
RETRY_SECONDS: Final = 2.0
LATER_STATUSES: Final = frozenset({429, 503})

ProgressUpdate = Callable[[dict[str, Any], Any], None]


class FrontUnreachable(Exception):
    """Error when the front does not reply, or ended during the job."""


@dataclass(slots=True)
class Handler:
    """RunPod's handler: `await handler(job)` returns the reply."""

    front_url: str
    wants_base64: bool
    update: ProgressUpdate
    certificate: Path | None = None
    key: str = ""

    async def __call__(self, job: dict[str, object]) -> dict[str, object]:
        job_id = str(job["id"])
        try:
            translated = translate(job, job_id, wants_base64=self.wants_base64)
        except InputRefused as refused:
            return refused.as_reply()
        except RequestRejected as rejected:
            return {"error": str(rejected)}
        progress = Progress(job, self.update)
        timeout = httpx.Timeout(30, read=None)
        try:  # anew for each job: the front may load a new certificate while it runs
            verify = True if self.certificate is None else trusting_context(self.certificate)
        except OSError as error:
            return {"error": f"The worker's certificate cannot be read ({cause_of(error)})"}
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        async with httpx.AsyncClient(
            base_url=self.front_url, timeout=timeout, trust_env=False, verify=verify, headers=headers
        ) as http:
            try:
                result = await self._run(http, translated, progress)
            except asyncio.CancelledError:
                await self._cancel(http, job_id)
                raise
            except FrontUnreachable as gone:
                return {"error": str(gone), "refresh_worker": True}
            finally:
                await progress.settle()
        return result_reply(result, is_comfyui_shape=translated.is_comfyui_shape)

    async def _run(self, http: httpx.AsyncClient, translated: Translated, progress: Progress) -> dict[str, Any]:
        """Return the result, or the refusal. A busy front is retried for some minutes."""
        gives_up_at = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, answer = await self._ask_once(http, translated.body, progress)
            if status not in LATER_STATUSES or time.monotonic() > gives_up_at:
                return answer
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_once(
        self, http: httpx.AsyncClient, body: dict[str, Any], progress: Progress
    ) -> tuple[int, dict[str, Any]]:
        try:
            async with http.stream("POST", "/generate/stream", json=body) as response:
                if response.status_code != 200:
                    return response.status_code, json.loads(await response.aread())
                async for event in _events(response):
                    if event.get("status") == "final_result":
                        return 200, dict(event["result"])
                    progress.on_event(event)
        except (httpx.HTTPError, ValueError) as error:
            raise FrontUnreachable(f"The worker ended during the job: {cause_of(error)}") from None
        raise FrontUnreachable("The worker ended during the job")

    async def _cancel(self, http: httpx.AsyncClient, job_id: str) -> None:
        try:
            await http.post(f"/cancel/{job_id}", timeout=10)
        except httpx.HTTPError as error:
            sys.stderr.write(f"the job could not be cancelled: {cause_of(error)}\n")


class Progress:
    """Sender of progress updates, at most one a second. After `settle()` no update is under way any more."""

    def __init__(self, job: dict[str, Any], update: ProgressUpdate) -> None:
        self._job = job
        self._update = update
        self._shown: dict[str, Any] = {}
        self._told_at = float("-inf")
        self._threads: list[threading.Thread] = []

    def on_event(self, event: dict[str, Any]) -> None:
        progress = event.get("progress") or {}
        shown = {
            "status": event.get("status"),
            "message": event.get("message"),
            "percent": progress.get("percent"),
            "node_id": progress.get("node_id"),
        }
        now = time.monotonic()
        if shown == self._shown or now - self._told_at < PROGRESS_SECONDS:
            return
        self._shown, self._told_at = shown, now
        before = set(threading.enumerate())
        self._update(self._job, shown)
        # the package sends from a thread that it does not expose
        self._threads += [thread for thread in threading.enumerate() if thread not in before]

    async def settle(self) -> None:
        """Wait for updates under way: one that arrived after the result would reopen the job."""
        for thread in self._threads:
            await asyncio.to_thread(thread.join, JOIN_SECONDS)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            event: dict[str, Any] = json.loads(line[5:])
            yield event


def main() -> None:
    parser = argparse.ArgumentParser(prog="darkroom.worker.integrations.runpod.loop")
    parser.add_argument("front_url")
    parser.add_argument("--certificate", type=Path, help="what the front shows, where it serves https")
    parser.add_argument("--key-file", type=Path, help="holds the key that the front made for this loop")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--refresh-worker", action="store_true")
    parser.add_argument("--uploads", action="store_true", help="outputs go to S3, so no data need be returned")
    given = parser.parse_args()
    sys.argv = sys.argv[:1]  # the package parses the rest

    import runpod  # an extra; importing it reads credentials and creates a folder

    key = "" if given.key_file is None else read_own_key(given.key_file)
    handler = Handler(given.front_url, not given.uploads, runpod.serverless.progress_update, given.certificate, key)

    async def handle(job: dict[str, object]) -> dict[str, object]:
        return await handler(job)

    runpod.serverless.start(
        {
            "handler": handle,
            "concurrency_modifier": lambda _current: given.concurrency,
            "refresh_worker": given.refresh_worker,
        }
    )


if __name__ == "__main__":
    main()
