"""Reading request bodies: what is wrong with one is the caller's to mend, and answered 400."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from engine.errors import Problem


def problem_response(problem: Problem) -> web.Response:
    """400 in ComfyUI's form."""
    return web.json_response({"error": problem.as_json(), "node_errors": {}}, status=400)


async def read_object(request: web.Request, *, may_be_empty: bool = False) -> dict[str, Any]:
    """The body as a JSON object; an empty body is `{}` where it may be empty. Raises HTTPBadRequest otherwise."""
    body = await request.read()
    if may_be_empty and not body.strip():
        return {}
    try:
        data = json.loads(body)
    except ValueError as error:
        raise _bad_request("invalid_json", "The body is not JSON", str(error)) from None
    if not isinstance(data, dict):
        raise _bad_request("invalid_json", "The body is not a JSON object", f"it is a {type(data).__name__}")
    return data


def read_int(request: web.Request, name: str) -> int | None:
    """A whole number of the query, None when it is not given. Raises HTTPBadRequest when it is no number."""
    text = request.query.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise _bad_request("invalid_query", f"{name} is not a whole number", text or "") from None


def _bad_request(kind: str, message: str, details: str) -> web.HTTPBadRequest:
    body = {"error": Problem(kind, message, details, {}).as_json(), "node_errors": {}}
    return web.HTTPBadRequest(text=json.dumps(body), content_type="application/json")
