"""Replies with the results of jobs. A large one is written to a file and sent from there, at the client's pace.

So what a gateway holds in memory does not grow with the number of clients that read slowly. The file has no name and
is gone with its reply.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import IO, Final

from fastapi.responses import Response, StreamingResponse

from darkroom.worker.gateway.gateway import Gateway
from darkroom.worker.gateway.result_memory import LARGE_BYTES
from darkroom.worker.json import finite as finite_json
from darkroom.worker.json.finite import FiniteJSONResponse
from darkroom.worker.storage.job import Job

PIECE_BYTES: Final = 256 * 1024

Shown = Callable[[Job], object]
"""Returns the JSON value that shows an ended job."""


async def reply_of(gateway: Gateway, job: Job, shown: Shown, status: int) -> Response:
    """Return the reply that shows a job."""
    async with gateway.loaded(job) as whole:
        if whole is job:
            return FiniteJSONResponse(shown(job), status_code=status)
        file = await asyncio.to_thread(_written, whole, shown)
    headers = {"Content-Length": str(file.seek(0, 2))}
    return StreamingResponse(_pieces(file), status_code=status, media_type="application/json", headers=headers)


async def written_reply(text: Callable[[], bytes]) -> Response:
    """Return a reply with a JSON text that is made on a thread, a large one from a file."""
    content = await asyncio.to_thread(text)
    if len(content) <= LARGE_BYTES:
        return Response(content, media_type="application/json")
    file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever sends it closes it
    await asyncio.to_thread(file.write, content)
    headers = {"Content-Length": str(len(content))}
    return StreamingResponse(_pieces(file), media_type="application/json", headers=headers)


async def pieces_of(gateway: Gateway, job: Job, shown: Shown) -> AsyncIterator[bytes]:
    """Yield the JSON text that shows a job, a large one in pieces."""
    async with gateway.loaded(job) as whole:
        text = finite_json.dumps(shown(job)).encode() if whole is job else b""
        file = None if whole is job else await asyncio.to_thread(_written, whole, shown)
    if file is None:
        yield text
        return
    async for piece in _pieces(file):
        yield piece


def _written(job: Job, shown: Shown) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - whoever sends it closes it
    file.write(finite_json.dumps(shown(job)).encode())
    return file


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    with file:
        file.seek(0)
        while piece := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield piece
