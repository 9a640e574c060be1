"""`/api/v1/preload`: models read before the first prompt that names them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiohttp import web

from engine.errors import CallerError, OutOfMemory, Problem
from engine.server.requests import problem_response, read_object
from engine.server.services import services


async def post_preload(request: web.Request) -> web.Response:
    """`{"models": [{"kind": "checkpoints", "name": "a.safetensors"}], "keep": true}`, one after the other.

    `kind` is `checkpoints` unless given. Answers when all are read: `{"models": [{kind, name, bytes, seconds}]}`, with
    `error` in the place of `bytes` for one that cannot be, and 422 when there is such a one.
    """
    body = await read_object(request)
    problem = _problem(body)
    if problem is not None:
        return problem_response(problem)
    engine = await services(request).start.engine()
    # Not imported above: engine.engine imports torch, and the server answers before that is there.
    from engine.engine import PRELOADED_KINDS

    told: list[dict[str, Any]] = []
    for entry in body["models"]:
        kind, name = entry.get("kind", "checkpoints"), entry["name"]
        told.append({"kind": kind, "name": name})
        if kind not in PRELOADED_KINDS:
            told[-1]["error"] = f"{kind!r} is none of {', '.join(PRELOADED_KINDS)}"
            continue
        began_seconds = time.monotonic()
        try:
            told[-1]["bytes"] = await asyncio.wrap_future(engine.preload(kind, name, keep=body.get("keep", True)))
        except (CallerError, OutOfMemory) as error:
            told[-1] |= {"error": str(error), "code": error.code}
        told[-1]["seconds"] = round(time.monotonic() - began_seconds, 3)
    is_good = all("error" not in entry for entry in told)
    return web.json_response({"models": told}, status=200 if is_good else 422)


def _problem(body: dict[str, Any]) -> Problem | None:
    models = body.get("models")
    if not isinstance(models, list) or not all(isinstance(item, dict) for item in models):
        return Problem("invalid_models", "models is not a list of objects", repr(models), {"input_name": "models"})
    for item in models:
        if not isinstance(item.get("name"), str) or not isinstance(item.get("kind", ""), str):
            return Problem("invalid_models", "a model needs a name, a text", repr(item), {"input_name": "models"})
    if not isinstance(body.get("keep", True), bool):
        return Problem("invalid_keep", "keep is neither true nor false", repr(body["keep"]), {"input_name": "keep"})
    return None


ROUTES = (web.post("/api/v1/preload", post_preload),)
