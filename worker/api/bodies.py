"""The body of a request, whole and within a limit."""

from __future__ import annotations

from fastapi import Request

from worker.errors import RequestTooLarge


def check_length(request: Request, max_bytes: int) -> None:
    """Raises RequestTooLarge for a body that is announced as too long."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)


async def read_body(request: Request, max_bytes: int) -> bytearray:
    """Raises RequestTooLarge, as soon as that shows."""
    check_length(request, max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        body += chunk
    return body


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The body is over {max_bytes} bytes", limit_bytes=max_bytes)
