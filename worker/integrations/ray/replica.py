"""Replica: one worker within Ray Serve, with the GPU that Ray gives to the replica's process."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx
from ray import serve

from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.integrations.ray.forwarding import ForwardedRequest, ReplyHead, passed_on
from darkroom.worker.integrations.ray.options import RayOptions
from darkroom.worker.integrations.ray.tethered_worker import TetheredWorker

READY_LOOK_SECONDS: Final = 0.2
CONNECT_SECONDS: Final = 10.0
HEALTH_SECONDS: Final = 20.0
MODELS_PER_REPLICA: Final = 4
"""Models that a replica counts as loaded; the engine itself decides what its memory holds."""


class WorkerGone(Exception):
    """The worker of a replica does not answer."""


class Replica:
    """A worker and the requests forwarded to it."""

    def __init__(self, options: RayOptions) -> None:
        self._drain_seconds = options.drain_seconds
        options.state_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._state = Path(tempfile.mkdtemp(prefix="replica-", dir=options.state_directory))
        changes = {"DRAIN_TIMEOUT": f"{options.drain_seconds:g}", **options.settings}
        self._worker = TetheredWorker(self._state, changes | ({} if options.gpus else {"CPU": "true"}))
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        self._http = httpx.AsyncClient(base_url=self._worker.url, timeout=timeout, trust_env=False)
        self._wait_until_ready()

    async def handle(self, request: ForwardedRequest) -> AsyncIterator[ReplyHead | bytes]:
        """Yield the head of the worker's reply, then its body. Raises WorkerGone."""
        if request.model:
            await self._note_model(request.model)
        sent = self._http.build_request(
            request.method, request.path, headers=list(request.headers), content=request.body or None
        )
        try:
            reply = await self._http.send(sent, stream=True)
        except httpx.TransportError as error:
            raise WorkerGone(cause_of(error)) from None
        try:
            yield ReplyHead(reply.status_code, passed_on(reply.headers))
            async for piece in reply.aiter_raw():
                yield piece
        finally:
            await reply.aclose()

    async def check_health(self) -> None:
        """Raise WorkerGone where the worker says that it does not get on: Ray Serve then replaces the replica."""
        try:
            reply = await self._http.get("/health", timeout=HEALTH_SECONDS)
        except httpx.TransportError as error:
            raise WorkerGone(cause_of(error)) from None
        if reply.status_code != 200:
            raise WorkerGone(f"health is {reply.status_code}")

    def __del__(self) -> None:
        """Stop the worker when Ray Serve takes the replica away."""
        self._worker.stop(self._drain_seconds)
        shutil.rmtree(self._state, ignore_errors=True)

    @serve.multiplexed(max_num_models_per_replica=MODELS_PER_REPLICA)  # type: ignore[untyped-decorator]
    async def _note_model(self, model: str) -> str:
        """Announce to Ray Serve's routers that this replica has a model. The engine loads it with the request."""
        return model

    def _wait_until_ready(self) -> None:
        """Wait for a worker that downloads models, starts its engine and qualifies, however long that takes."""
        with httpx.Client(base_url=self._worker.url, timeout=HEALTH_SECONDS, trust_env=False) as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if http.get("/ready").status_code == 200:
                        return
                self._worker.check_running()
                time.sleep(READY_LOOK_SECONDS)
