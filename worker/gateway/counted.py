"""Counting of requests at all gateways together, before a route checks its caller."""

from __future__ import annotations

from fastapi import Request

from darkroom.worker.api.internal_requests import internal_identity
from darkroom.worker.api.results import COUNTED_SCOPE, caller_of_jobs, nobody
from darkroom.worker.errors import Unauthorized
from darkroom.worker.gateway.routes import services_of
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.rate_limits import EXEMPT


async def count_request(request: Request) -> None:
    """Count a request of its caller. What the database has not counted the route counts, for this gateway alone.

    Raises LimitReached.
    """
    rates = services_of(request).request_rates
    if rates is None or internal_identity(request) is not None:
        return
    caller = caller_of_jobs(request, _identity(request))
    if caller != EXEMPT and await rates.count(caller):
        request.scope[COUNTED_SCOPE] = True


def _identity(request: Request) -> Identity:
    peer = None if request.client is None else request.client.host
    try:
        return services_of(request).requests.guard.check(peer, request.headers.items(), has_vast_envelope=False)
    except Unauthorized:
        return nobody(request)
