"""Cache of one expensive JSON document, built once for each state of its source, off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from darkroom.worker.json import finite as finite_json


@dataclass(frozen=True, slots=True)
class _Built:
    source: object
    content: bytes
    etag: str


class DocumentCache:
    """Cache of one document for its newest source; a client that has it gets 304."""

    def __init__(self, media_type: str = "application/json") -> None:
        self._media_type = media_type
        self._built: _Built | None = None
        self._building = asyncio.Lock()

    async def reply(self, request: Request, source: object, build: Callable[[], Any]) -> Response:
        """Reply with the document that `build` builds from `source`.

        `source` is replaced by another value and never mutated.
        """
        built = self._built
        if built is None or built.source is not source:
            async with self._building:  # concurrent requests share one build
                built = self._built
                if built is None or built.source is not source:
                    built = self._built = await asyncio.to_thread(_build, source, build, built)
        headers = {"ETag": built.etag, "Cache-Control": "no-cache"}
        if _names(request.headers.get("if-none-match", ""), built.etag):
            return Response(status_code=304, headers=headers)
        return Response(built.content, media_type=self._media_type, headers=headers)


def _build(source: object, build: Callable[[], object], last: _Built | None) -> _Built:
    if last is not None and last.source == source:  # reloaded, but equal
        return replace(last, source=source)
    content = finite_json.dumps(build()).encode()
    return _Built(source, content, f'"{sha256(content).hexdigest()[:32]}"')


def _names(header: str, etag: str) -> bool:
    """Return True if an If-None-Match header lists the tag, by weak comparison."""
    given = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in given or "*" in given
