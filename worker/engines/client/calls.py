"""EngineCalls: requests to one engine over HTTP, and whether its answers can be used."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import structlog

from darkroom.worker.engines import answers
from darkroom.worker.engines.address import EngineAddress
from darkroom.worker.engines.http import EngineHttp, Reply
from darkroom.worker.engines.model_folders import parse_folders
from darkroom.worker.errors import EngineAnswerInvalid, EngineUnreachable

FAULT_SECONDS = 60.0  # for which an answer that was not valid counts, unless a valid one of its route comes
SMALL_ANSWER_BYTES = 1024 * 1024  # of routes that say little
MAX_PREVIEW_BYTES = 4 * 1024 * 1024
ASK_SECONDS = 600.0  # reading a model from a slow disk takes minutes

log = structlog.get_logger("engine.client")


class EngineCalls:
    """HTTP client of one engine, with the routes whose answers were not valid of late."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address
        self._http = EngineHttp(address)
        self._faults: dict[str, tuple[float, str]] = {}  # by route: when its answer was not valid, and why

    async def close(self) -> None:
        """Close the idle connections."""
        await self._http.close()

    @property
    def answer_fault(self) -> str:
        """Reason why answers of the engine cannot be used, of late; empty for none."""
        since = time.monotonic() - FAULT_SECONDS
        return next((reason for at, reason in reversed(self._faults.values()) if at > since), "")

    @contextlib.contextmanager
    def judging(self, route: str) -> Iterator[None]:
        """Note for `answer_fault` if the answer that is asked for and read in the block is valid."""
        try:
            yield
        except EngineAnswerInvalid as error:
            if route not in self._faults:
                log.error("engine answer invalid", url=self._address.url, reason=error.message)
            self._faults.pop(route, None)
            self._faults[route] = time.monotonic(), error.message
            raise
        self._faults.pop(route, None)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        content_type: str = "application/json",
        *,
        headers: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> Reply:
        """Return the reply to a request, whatever its status. Raises EngineUnreachable."""
        return await self._http.request(method, path, body, content_type, headers=headers, max_bytes=max_bytes)

    async def post(self, path: str, value: object) -> Reply:
        """Return the reply to a value that is posted as JSON. Raises EngineUnreachable."""
        return await self._http.request("POST", path, encoded(value))

    async def get(self, path: str, max_bytes: int | None = None) -> dict[str, Any]:
        """Return the JSON object at a path. Raises EngineUnreachable, EngineAnswerInvalid."""
        response = await self._http.request("GET", path, max_bytes=max_bytes)
        if response.status != 200:
            raise EngineUnreachable(f"The engine answered {response.status} to {path}")
        return await response.json_object()

    def stream(self, path: str) -> contextlib.AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """Request a path by GET. Yields the status and the body piece by piece."""
        return self._http.stream(path)

    async def ask(
        self, method: str, path: str, body: object = None, *, timeout_seconds: float = ASK_SECONDS
    ) -> tuple[int, dict[str, object]]:
        """Request a route that only our own engine has.

        Returns the status, and the body where it is a JSON object.
        """
        http = EngineHttp(self._address, timeout_seconds)
        try:
            reply = await http.request(method, path, b"" if body is None else encoded(body))
        finally:
            await http.close()
        return reply.status, await reply.json_object() if reply.status == 200 else await _object_or_none(reply)

    async def system_stats(self) -> Mapping[str, Any]:
        """Return the engine's description of its devices and versions. Raises EngineUnreachable."""
        with self.judging("stats"):
            found = await self.get("/system_stats", SMALL_ANSWER_BYTES)
            answers.check_stats("GET /system_stats", found)
            return found

    async def model_folders(self) -> dict[str, list[str]]:
        """Return the folders of each kind of model; empty for an engine that does not report them."""
        reply = await self._http.request("GET", "/experiment/models")
        return parse_folders(await reply.json_value()) if reply.status == 200 else {}

    async def model_preview(self, kind: str, name: str, longer_side_px: int) -> bytes | None:
        """Return the preview image of a model file as WebP, None without one. Raises EngineUnreachable."""
        parts = name.split("/")
        if {".", ".."} & {kind, *parts}:
            return None
        place = "/".join(quote(part, safe="") for part in parts)
        for index in range(len((await self.model_folders()).get(kind, ()))):
            path = f"/experiment/models/preview/{quote(kind, safe='')}/{index}/{place}?longer_side={longer_side_px}"
            reply = await self._http.request("GET", path, max_bytes=MAX_PREVIEW_BYTES)
            if reply.status == 200 and reply.body[:4] == b"RIFF" and reply.body[8:12] == b"WEBP":
                return reply.body
        return None

    async def metrics_text(self) -> str | None:
        """Return the engine's own metrics in Prometheus' text format; None from an engine that has none."""
        reply = await self._http.request("GET", "/metrics")
        return reply.body.decode(errors="replace") if reply.status == 200 else None

    async def forget_unused(self) -> None:
        """Ask the engine to evict the models that no prompt holds. Raises EngineUnreachable, EngineAnswerInvalid.

        The answer is empty, as ComfyUI's is.
        """
        reply = await self.post("/free", {"free_memory": True})
        if reply.status != 200:
            raise answers.invalid("POST /free", f"got status {reply.status}, expected 200")

    async def free(self) -> None:
        """Ask the engine to release all memory that it can do without, before its next prompt."""
        with contextlib.suppress(EngineUnreachable):
            await self.post("/free", {"unload_models": True, "free_memory": True})


def encoded(body: object) -> bytes:
    """Return a value as a JSON text."""
    return json.dumps(body).encode()


async def _object_or_none(reply: Reply) -> dict[str, Any]:
    """Return the object in the body of an error, empty for another body."""
    try:
        return await reply.json_object()
    except EngineAnswerInvalid:
        return {}
