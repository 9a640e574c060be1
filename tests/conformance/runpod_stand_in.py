"""A stand-in for RunPod's job server: hands out jobs, takes results, progress and pings, and stops jobs."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.served import served

API_KEY = "runpod-key-that-no-log-may-show"
LONG_POLL_SECONDS = 1.0


@dataclass
class JobServer:
    """Use as `async with JobServer() as jobs`. `updates` and `results` are what came, by job, in order."""

    updates: dict[str, list[Any]] = field(default_factory=dict)
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    pings: list[dict[str, str]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    url: str = ""
    _serving: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    _waiting: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    _stops: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> JobServer:
        app = web.Application(client_max_size=2**30)
        app.add_routes(
            [
                web.get("/v2/endpoint/job-take/{worker}", self._take),
                web.get("/v2/endpoint/job-stop/{worker}", self._stop),
                web.post("/v2/endpoint/job-done/{worker}/{job}", self._done),
                web.get("/v2/endpoint/ping/{worker}", self._ping),
            ]
        )
        self.url = await self._serving.enter_async_context(served(app))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    def environment(self) -> dict[str, str]:
        """Return the variables that RunPod sets in a worker's environment."""
        base = f"{self.url}/v2/endpoint"
        return {
            "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?gpu=none&key={API_KEY}",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?gpu=none",
            "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID",
            "RUNPOD_PING_INTERVAL": "1000",
            "RUNPOD_AI_API_KEY": API_KEY,
            "RUNPOD_POD_ID": "pod-1",
            "RUNPOD_SKIP_GPU_CHECK": "true",
            "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
        }

    def give(self, job_id: str, job_input: Any) -> None:
        self._waiting.put_nowait({"id": job_id, "input": job_input})

    def stop(self, job_id: str) -> None:
        self._stops.put_nowait(job_id)

    async def result_of(self, job_id: str, seconds: float = 60) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            while job_id not in self.results:
                self._came.clear()
                await self._came.wait()
        return self.results[job_id][0]

    async def until_updated(self, job_id: str, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while job_id not in self.updates:
                self._came.clear()
                await self._came.wait()

    async def _take(self, request: web.Request) -> web.Response:
        self._check(request)
        try:
            job = await asyncio.wait_for(self._waiting.get(), LONG_POLL_SECONDS)
        except TimeoutError:
            return web.Response(status=204)
        self.taken.append(job["id"])
        return web.json_response(job)

    async def _stop(self, request: web.Request) -> web.Response:
        self._check(request)
        try:
            job_id = await asyncio.wait_for(self._stops.get(), LONG_POLL_SECONDS)
        except TimeoutError:
            return web.Response(status=204)
        return web.json_response({"jobsToStop": [job_id]})

    async def _done(self, request: web.Request) -> web.Response:
        self._check(request)
        job_id = request.match_info["job"]
        body = json.loads(await request.text())
        if body.get("status") == "IN_PROGRESS":
            self.updates.setdefault(job_id, []).append(body["output"])
            if job_id in self.results:
                self.late.append(job_id)
        else:
            self.results.setdefault(job_id, []).append(body)
        self._came.set()
        return web.Response(text="ok")

    async def _ping(self, request: web.Request) -> web.Response:
        self._check(request)
        self.pings.append(dict(request.query))
        return web.Response(text="ok")

    def _check(self, request: web.Request) -> None:
        self.keys.add(request.headers.get("Authorization", ""))
