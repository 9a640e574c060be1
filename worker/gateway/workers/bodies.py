"""Results as workers send them: written to a file while they arrive, so that slow ones take no memory."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from typing import Final

from fastapi import Request

from darkroom.worker.errors import Problem, RequestRejected, RequestTooLarge
from darkroom.worker.gateway.result_memory import LARGE_BYTES, ResultMemory, SpoolBudget

MAX_RESULT_BYTES: Final = 256 * 1024 * 1024


@contextlib.asynccontextmanager
async def read_result(request: Request, memory: ResultMemory, spool: SpoolBudget) -> AsyncIterator[bytes]:
    """Yield the body of a request once there is memory for it. Raises RequestTooLarge, RequestRejected, NotReady."""
    declared = request.headers.get("content-length", "")
    if not (declared.isascii() and declared.isdigit()):
        raise RequestRejected([Problem("Content-Length: missing; expected the bytes of the body", field="body")])
    if len(declared) > len(str(MAX_RESULT_BYTES)) or int(declared) > MAX_RESULT_BYTES:
        raise _too_large(declared[:20])
    with tempfile.SpooledTemporaryFile(max_size=LARGE_BYTES) as file, spool.spooling() as count:
        num_bytes = 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            if num_bytes > MAX_RESULT_BYTES:
                raise _too_large(num_bytes)
            count(len(chunk))
            file.write(chunk)
        file.seek(0)
        async with memory.lease(num_bytes):
            yield await asyncio.to_thread(file.read)


def _too_large(found: object) -> RequestTooLarge:
    message = f"The result is too large; got {found} bytes, expected at most {MAX_RESULT_BYTES}"
    return RequestTooLarge(message, limit_bytes=MAX_RESULT_BYTES)
