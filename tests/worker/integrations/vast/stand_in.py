"""A stand-in for Vast's autoscaler: a real server that hands out its key, routes, signs, and writes down every report.

`/route/` gives the worker with the least load of those that have reported themselves loaded and without error, as a
client of the platform sees it; a request index stays the request's for as long as the client repeats it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.served import served


@dataclass
class StandIn:
    """Use as `async with StandIn() as autoscaler`. `statuses` and `ends` are what was reported, in order."""

    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))
    statuses: list[dict[str, Any]] = field(default_factory=list)
    ends: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    routed: list[dict[str, Any]] = field(default_factory=list)
    refuses_reports: bool = False
    has_key: bool = True
    url: str = ""
    _serving: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)
    root_certificate: bytes = b""
    endpoint: dict[str, Any] = field(default_factory=dict)
    _last_index: int = 0
    _num_routes: int = 0
    _gone: set[str] = field(default_factory=set)

    async def __aenter__(self) -> StandIn:
        app = web.Application()
        app.add_routes(
            [
                web.get("/pubkey/", self._pubkey),
                web.post("/worker_status/", self._status),
                web.post("/delete_requests/", self._delete),
                web.post("/route/", self._route),
                web.get("/root.cer", self._root),
                web.get("/api/v0/endptjobs/", self._endpoints),
                web.post("/get_endpoint_workers/", self._workers),
            ]
        )
        self.url = await self._serving.enter_async_context(served(app))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._serving.aclose()

    def sign(self, url: str) -> str:
        text = '{\n    "url": ' + json.dumps(url) + "\n}"
        return base64.b64encode(self.key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())).decode()

    def auth(self, url: str, request_idx: int, cost: Any = 100, **changes: Any) -> dict[str, Any]:
        """Return the content of a route reply, which the client sends along as `auth_data`."""
        auth = {"cost": cost, "endpoint": "pictures", "reqnum": request_idx, "request_idx": request_idx}
        return {**auth, "signature": self.sign(url), "url": url, "some": "more"} | changes

    async def until_status(self, *, seconds: float = 60, **wanted: Any) -> dict[str, Any]:
        """The first status report in which every field is as wanted; a callable is asked about the value."""
        return await self._until(self.statuses, wanted, seconds)

    async def until_end(self, request_idx: int) -> dict[str, Any]:
        return await self._until(self.ends, {"request_idx": request_idx}, 60)

    async def _until(self, reports: list[dict[str, Any]], wanted: dict[str, Any], seconds: float) -> dict[str, Any]:
        def fits(report: dict[str, Any]) -> bool:
            return all(
                value(report[name]) if callable(value) else report[name] == value for name, value in wanted.items()
            )

        seen = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    for report in reports[seen:]:
                        seen += 1
                        if fits(report):
                            return report
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"no report with {wanted}; the last were {reports[-3:]}") from None

    def forget_worker(self, url: str) -> None:
        """Forget a worker, as when the platform has seen that an instance is gone."""
        self._gone.add(url)

    async def _pubkey(self, _request: web.Request) -> web.Response:
        self.asked.append("/pubkey/")
        encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        pem = self.key.public_key().public_bytes(encoding, form).decode()
        return web.Response(text=pem) if self.has_key else web.Response(status=503)

    async def _status(self, request: web.Request) -> web.Response:
        self.asked.append("/worker_status/")
        if self.refuses_reports:
            return web.Response(status=500)
        self.statuses.append(await request.json())
        return web.json_response({"ok": True})

    async def _delete(self, request: web.Request) -> web.Response:
        self.asked.append("/delete_requests/")
        if self.refuses_reports:
            return web.Response(status=500)
        body = await request.json()
        self.ends += [{**entry, "worker_id": body["worker_id"], "mtoken": body["mtoken"]} for entry in body["requests"]]
        return web.json_response({"ok": True})

    async def _route(self, request: web.Request) -> web.Response:
        body = await request.json()
        index = body["request_idx"]
        if not index:
            self._last_index += 1
            index = self._last_index
        self._num_routes += 1
        ready = sorted(self._ready(), key=lambda status: float(status["cur_load"]))
        if not ready:
            return web.json_response({"request_idx": index, "status": "waiting"})
        auth = self.auth(ready[0]["url"], index, body["cost"], reqnum=self._num_routes)
        self.routed.append(auth)
        return web.json_response(auth)

    def _ready(self) -> list[dict[str, Any]]:
        """The last report of each worker that takes requests."""
        last = {status["url"]: status for status in self.statuses}
        return [
            status
            for url, status in last.items()
            if url not in self._gone and status["loadtime"] and status["max_perf"] and not status["error_msg"]
        ]

    async def _root(self, _request: web.Request) -> web.Response:
        return web.Response(body=self.root_certificate)

    async def _endpoints(self, _request: web.Request) -> web.Response:
        return web.json_response({"success": True, "results": [self.endpoint]})

    async def _workers(self, _request: web.Request) -> web.Response:
        return web.json_response([{"id": status["id"], "status": "idle"} for status in self._ready()])
