"""Reading requests: what is wrong with one is the caller's to mend, and answered 400."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import get_args

from aiohttp import web
from aiohttp.http import HttpProcessingError

from darkroom.contract.errors import Problem
from darkroom.contract.graph.spec import ValueDict, Values
from darkroom.contract.quality import QUALITIES
from darkroom.contract.wire import CHECKPOINT_KEY, KEY_FORM, PREVIEW_METHOD_KEY, QUALITY_KEY, is_checkpoint_key
from darkroom.engine.settings import PreviewMethod

LONGEST_SHOWN = 200
LARGE_BODY_BYTES = 256 * 1024  # from here on parsed off the event loop
STRUCTURE = (b"[", b"{", b",")
MAX_JSON_MARKS = 2_000_000  # parsing costs by their number, an image in base64 has none
PREVIEW_METHODS = ("default", *get_args(PreviewMethod))
FORM_ERRORS = (ValueError, LookupError, RuntimeError, AssertionError, HttpProcessingError)  # aiohttp's, of a bad form


def problem_response(problem: Problem) -> web.Response:
    """Return a 400 response in ComfyUI's form."""
    return web.json_response({"error": problem.as_json(), "node_errors": {}}, status=400)


async def read_object(request: web.Request, *, may_be_empty: bool = False) -> ValueDict:
    """Read the body as a JSON object; an empty body is `{}` where it may be empty. Raises HTTPBadRequest otherwise."""
    body = await request.read()
    if may_be_empty and not body.strip():
        return {}
    num_marks = sum(map(body.count, STRUCTURE)) if len(body) > MAX_JSON_MARKS else 0
    if num_marks > MAX_JSON_MARKS:
        details = f"got {num_marks} brackets and commas, expected at most {MAX_JSON_MARKS}"
        raise _bad_request("json_too_large", "The body has too many elements", details)
    try:
        data = json.loads(body) if len(body) < LARGE_BODY_BYTES else await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError) as error:
        raise _bad_request("invalid_json", "The body is not JSON", str(error)) from None
    if not isinstance(data, dict):
        raise _bad_request("invalid_json", "The body is not a JSON object", f"it is a {type(data).__name__}")
    return data


async def read_form(request: web.Request) -> Mapping[str, object]:
    """Read the fields of a form. Raises HTTPBadRequest when the body is none."""
    try:
        return await request.post()
    except FORM_ERRORS as error:
        raise _bad_request("invalid_form", "The body is not a form", str(error)) from None


def read_number(body: Values) -> float | None:
    """Read `number`, a prompt's place in the queue; None when it is not given. Raises HTTPBadRequest."""
    if "number" not in body:
        return None
    try:
        number = float(body["number"])
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _bad_request("invalid_number", "number is not a number", _shown(body["number"]))
    return number


def read_targets(body: Mapping[str, object]) -> list[str] | None:
    """Read `partial_execution_targets`, the output nodes to run; None for all. Raises HTTPBadRequest."""
    targets = body.get("partial_execution_targets")
    if targets is not None and not (isinstance(targets, list) and all(isinstance(item, str) for item in targets)):
        raise _bad_request("invalid_targets", "partial_execution_targets is not a list of node ids", _shown(targets))
    return targets


def read_extra_data(body: Mapping[str, object]) -> dict[str, object]:
    """Read `extra_data`: `extra_pnginfo` that images carry, `quality`, `preview_method`, `checkpoint`.

    Raises HTTPBadRequest.
    """
    extra_data = body.get("extra_data")
    if not isinstance(extra_data, (dict, type(None))):
        raise _bad_request("invalid_extra_data", "extra_data is not an object", _shown(extra_data))
    pnginfo = (extra_data or {}).get("extra_pnginfo")
    if not isinstance(pnginfo, (dict, type(None))):
        raise _bad_request("invalid_extra_data", "extra_data.extra_pnginfo is not an object", _shown(pnginfo))
    quality = (extra_data or {}).get(QUALITY_KEY)
    if quality not in (None, *QUALITIES):
        allowed = f"extra_data.{QUALITY_KEY} is unknown; expected one of {', '.join(QUALITIES)}"
        raise _bad_request("invalid_extra_data", allowed, _shown(quality))
    method = (extra_data or {}).get(PREVIEW_METHOD_KEY)
    if method not in (None, *PREVIEW_METHODS):
        allowed = f"extra_data.{PREVIEW_METHOD_KEY} is unknown; expected one of {', '.join(PREVIEW_METHODS)}"
        raise _bad_request("invalid_extra_data", allowed, _shown(method))
    key = (extra_data or {}).get(CHECKPOINT_KEY)
    if key is not None and not is_checkpoint_key(key):
        problem = f"extra_data.{CHECKPOINT_KEY} is no key; expected {KEY_FORM}"
        raise _bad_request("invalid_extra_data", problem, _shown(key))
    return extra_data or {}


def read_int(request: web.Request, name: str) -> int | None:
    """Read a whole number of the query, None when it is not given. Raises HTTPBadRequest when it is no number."""
    text = request.query.get(name)
    try:
        return None if text is None else int(text)
    except ValueError:
        raise _bad_request("invalid_query", f"{name} is not a whole number", text or "") from None


def _shown(value: object) -> str:
    return str(value)[:LONGEST_SHOWN]


def _bad_request(kind: str, message: str, details: str) -> web.HTTPBadRequest:
    body = {"error": Problem(kind, message, details, {}).as_json(), "node_errors": {}}
    return web.HTTPBadRequest(text=json.dumps(body), content_type="application/json")
