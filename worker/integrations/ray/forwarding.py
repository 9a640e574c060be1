"""Requests and replies between the ingress of the Ray Serve application and a replica. Pure.

The model of a request is its multiplexed id: Ray Serve prefers replicas that had a request with the same one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from darkroom.contract.graph.prompt_graph import model_files_in
from darkroom.worker.json.values import JsonObject, object_at

ROUTES: Final[Mapping[str, str]] = {
    "/generate/sync": "POST",
    "/generate/stream": "POST",
    "/modifiers": "GET",
    "/ready": "GET",
    "/live": "GET",
}
"""Routes that any replica answers alike. The others belong to the one worker that has a job."""

HOP_HEADERS: Final = frozenset(
    {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade"}
)
"""Headers of one connection, which are not passed on. `host`: the worker's own."""

MODEL_FIELDS: Final = ("ckpt_name", "unet_name", "model")


@dataclass(frozen=True, slots=True)
class ForwardedRequest:
    """An HTTP request on its way to a worker."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    model: str = ""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """Status and headers of a worker's reply; its body follows."""

    status: int
    headers: tuple[tuple[str, str], ...]


def forwarded(
    method: str, path: str, headers: Mapping[str, str], body: bytes, *, inline_outputs: bool
) -> ForwardedRequest:
    """Return the request for a worker. With `inline_outputs` it asks for the files' data in the result.

    A body that is no request is passed on as it is: the worker refuses it with every problem.
    """
    kept = passed_on(headers)
    given = _json_object(body)
    asked = object_at(given, "input")
    if method != "POST" or not asked:
        return ForwardedRequest(method, path, kept, body)
    if inline_outputs and not (asked.get("s3") or asked.get("put")):
        body = json.dumps({**given, "input": {**asked, "return_outputs_as_base64": True}}).encode()
    return ForwardedRequest(method, path, kept, body, model_of(asked), str(asked.get("request_id") or ""))


def passed_on(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the headers without those of the connection."""
    return tuple((name, value) for name, value in headers.items() if name.lower() not in HOP_HEADERS)


def model_of(asked: JsonObject) -> str:
    """Return the model file that a request's `input` names, "" for the worker's default."""
    modifications = object_at(asked, "modifications")
    for name in MODEL_FIELDS:
        value = modifications.get(name)
        if isinstance(value, str) and value:
            return value
    files = model_files_in(object_at(asked, "workflow_json"))
    return files[0].name if files else ""


def _json_object(body: bytes) -> JsonObject:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
