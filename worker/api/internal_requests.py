"""Requests that the front makes to its own application, in the name of a caller identified before."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from darkroom.worker.guard.identity.caller import Identity

IDENTITY: Final = "darkroom.identity"
"""Key in a request's ASGI scope, which no client can write to."""


def acting_as(app: ASGIApp, caller: Identity) -> ASGIApp:
    """Return the application wrapped so that every request has this caller's identity."""

    async def asked(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, IDENTITY: caller}, receive, send)

    return asked


def internal_identity(request: Request) -> Identity | None:
    """Return the caller in whose name the front itself makes the request, None for a request from outside."""
    known = request.scope.get(IDENTITY)
    return known if isinstance(known, Identity) else None
