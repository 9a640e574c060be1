"""The key of ComfyUI's web interface: POST and DELETE /comfy-key, and the check of its session cookie.

The interface is the engine itself: its queue, its files, every workflow of every caller. It takes an operator's key.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, Field, SecretStr

from darkroom.worker.api.body_sizes import takes_little
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.own_pages import own_page
from darkroom.worker.api.results import check_operator, services_of
from darkroom.worker.errors import Forbidden, WorkerError, http_status
from darkroom.worker.guard.foreign_page import is_of_foreign_page
from darkroom.worker.guard.identity.browser_sessions import LIFETIME_SECONDS
from darkroom.worker.guard.identity.caller import Identity

router = APIRouter(tags=["worker"])

COOKIE: Final = "darkroom_interface"
OTHER_SITES: Final = frozenset({"cross-site", "same-site"})


class InterfaceKey(BaseModel):
    """Key to open ComfyUI's web interface with."""

    key: SecretStr = Field(max_length=1000)


@router.post("/comfy-key", operation_id="open_interface", status_code=204, responses=refusals(401, 403))
@takes_little
async def open_interface(given: InterfaceKey, request: Request) -> Response:
    """Check an operator's key, and set the cookie of a session with ComfyUI's web interface for 12 hours."""
    check_site(request)
    check_operator(with_key(request, given.key))
    reply = Response(status_code=204)
    reply.set_cookie(
        COOKIE,
        services_of(request).engines.sessions.open(given.key),
        max_age=LIFETIME_SECONDS,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return reply


@router.delete("/comfy-key", operation_id="close_interface", status_code=204, responses=refusals(403))
async def close_interface(request: Request) -> Response:
    """End the session of the browser's cookie."""
    check_site(request)
    services_of(request).engines.sessions.close(request.cookies.get(COOKIE, ""))
    reply = Response(status_code=204)
    reply.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return reply


def check_visitor(request: Request) -> Identity:
    """Identify an operator by the Authorization header, else by the session's key.

    Raises Unauthorized, ScopeMissing, and Forbidden for a request of another site's page.
    """
    check_site(request)
    if "authorization" not in request.headers:
        secret = services_of(request).engines.sessions.find(request.cookies.get(COOKIE, ""))
        if secret is not None:
            request = with_key(request, secret)
    return check_operator(request)


def check_site(request: Request) -> None:
    """Refuse what a browser sends for a page of another origin, as a cookie comes along. Raises Forbidden.

    Following a link to the page is no such request: the cookie is not sent then.
    """
    is_followed = request.headers.get("sec-fetch-mode") == "navigate" and request.method == "GET"
    is_other = request.headers.get("sec-fetch-site") in OTHER_SITES and not is_followed
    if is_other or is_of_foreign_page(request.headers):
        raise Forbidden("A page of another site may not use ComfyUI's web interface")


def key_page(error: WorkerError) -> HTMLResponse:
    """Return the page with a field for the key, for a browser that has none yet."""
    page = own_page("comfy_key.html")
    page.status_code = http_status(type(error))
    return page


def with_key(request: Request, secret: SecretStr) -> Request:
    """Return the request with a key in its Authorization header, for keys that came elsewhere."""
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"authorization"]
    key = secret.get_secret_value().encode(errors="surrogatepass")
    return Request({**request.scope, "headers": [*headers, (b"authorization", b"Bearer " + key)]})
