"""Requests whose body is a workflow and nothing else: they run nothing, so they are neither counted nor queued."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect

from darkroom.worker.api.callers import sender_of
from darkroom.worker.api.request_forms import read_workflow
from darkroom.worker.api.results import check_caller, refuse, services_of
from darkroom.worker.api.services import RequestServices, Services
from darkroom.worker.concurrency.off_loop import needs_thread, off_loop
from darkroom.worker.errors import WorkerError
from darkroom.worker.guard.json_body import nested_too_deeply
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.prompts.workflows.forms import is_workflow
from darkroom.worker.settings.listener import JsonLimits

FIELD: Final = "workflow_json"
LARGE_BYTES: Final = 256 * 1024  # parsing more than this would hold up the event loop
ENGINE_WAIT_SECONDS: Final = 15.0

CONNECTION_SECONDS: Final = 1.0  # between two looks whether the client is still there

Answer = TypeVar("Answer")
Work = Callable[[Services, JsonObject, int], Coroutine[Any, Any, JsonObject]]  # the body and its bytes -> the reply


def body_schema(title: str) -> dict[str, Any]:
    """Return the declaration of such a body for the OpenAPI document."""
    schema = {"type": "object", "title": title, "description": '`{"workflow_json": ...}`, or the workflow itself'}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def reply_to(request: Request, work: Work) -> Response:
    """Read the body of a request and reply with what is made of it, or with the error."""
    services = services_of(request)
    try:
        check_caller(request)
        with services.requests.bodies.memory.lease(sender_of(request)) as lease:
            content = await services.requests.bodies.read(request, lease)
            body = await services.requests.bodies.parse(content)
            made = await while_connected(request, work(services, body, len(content)))
        return await off_loop(needs_thread(made), JSONResponse, made)
    except ClientDisconnect:
        return Response(status_code=499)
    except RecursionError:
        return refuse(nested_too_deeply())
    except WorkerError as error:
        return refuse(error)


async def while_connected(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the outcome of work, which ends with its client. Raises ClientDisconnect."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait([task], timeout=CONNECTION_SECONDS))[0]:
            if await request.is_disconnected():
                raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def checked_workflow(requests: RequestServices, body: JsonObject, size_bytes: int) -> JsonObject:
    """Return the workflow of a body within the limits of size. Raises RequestRejected."""
    workflow = await workflow_of(requests, body)
    await requests.prompt_rules.check_size(workflow, size_bytes)
    return workflow


async def workflow_of(requests: RequestServices, body: JsonObject) -> JsonObject:
    """Return the workflow of a body, one in a text or a file unpacked in a thread. Raises RequestRejected."""
    is_plain = is_workflow(body) or is_workflow(body.get(FIELD))
    return await off_loop(not is_plain or needs_thread(body), workflow_in, body, requests.bodies.structure)


def workflow_in(body: JsonObject, limits: JsonLimits) -> JsonObject:
    """Return the workflow of a body: the body itself, or in a field that tools use for it. Raises RequestRejected.

    `limits` hold for JSON within texts and files, too.
    """
    given = object_at(body, "input") or body
    value = given[FIELD] if FIELD in given and not is_workflow(given) else body
    return read_workflow(value, FIELD, FoundJson(limits))[0]
