"""Uploads of assets as multipart forms."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from fastapi import Request
from starlette.formparsers import MultiPartException, MultiPartParser

from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.results import caller_of_jobs, services_of
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.storage.asset_store import CheckRoom


def room_of(request: Request, caller: Identity) -> CheckRoom:
    """Return the check of whether a caller may store so many bytes more."""
    return partial(services_of(request).files.caller_quota.check_asset, caller_of_jobs(request, caller))


async def read_form(keyed: Request, request: Request) -> dict[str, Any]:
    """Return the parts of a form, its file on disk, None for an absent `file`; `keyed` has the caller's key.

    Raises RequestRejected, RequestTooLarge.
    """
    bodies, sender = services_of(request).requests.bodies, sender_of(keyed)
    bodies.check_length(request, None)

    async def chunks() -> AsyncGenerator[bytes, None]:
        num_bytes = 0
        async for chunk in request.stream():
            num_bytes += len(chunk)
            bodies.check_size(num_bytes, sender, None)
            yield chunk

    try:
        form = await MultiPartParser(request.headers, chunks(), max_files=1, max_fields=40).parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = f"body: is no multipart form: {error}; expected multipart/form-data"
        raise RequestRejected([Problem(message[:300], "body")]) from None
    return {"file": None, **dict(form.multi_items())}
