"""`/prompt`, `/queue`, `/history`, `/interrupt`, `/free`: prompts in, and what becomes of them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid

from aiohttp import web

from darkroom.contract.errors import Problem, PromptRejected
from darkroom.contract.graph.arriving import arriving_files
from darkroom.engine.server import messages
from darkroom.engine.server.queue import QueuedPrompt
from darkroom.engine.server.requests import (
    problem_response,
    read_extra_data,
    read_int,
    read_number,
    read_object,
    read_targets,
)
from darkroom.engine.server.services import services

log = logging.getLogger(__name__)


async def get_prompt(request: web.Request) -> web.Response:
    return web.json_response(messages.queue_info(services(request).queue.remaining))


async def post_prompt(request: web.Request) -> web.Response:
    """Check a prompt and queue what of it can run. 400 with every problem when nothing can."""
    parts = services(request)
    body = parts.packs.change_prompt(await read_object(request))
    number = read_number(body)
    if number is None:
        number = _next_number(parts.runner.next_number(), body)
    if "prompt" not in body:
        return problem_response(Problem("no_prompt", "No prompt provided", "No prompt provided", {}))
    prompt_id = str(body.get("prompt_id", uuid.uuid4()))
    extra_data, targets = read_extra_data(body), read_targets(body)
    engine = await parts.start.engine()
    try:
        checked = await asyncio.to_thread(engine.check, body["prompt"], targets, arriving_files(extra_data))
    except PromptRejected as rejected:
        log.info("prompt %s refused: %s", prompt_id, rejected)
        return web.json_response(rejected.as_json(), status=400)
    client = {"client_id": body["client_id"]} if "client_id" in body else {}
    extra_data = {**extra_data, **client, "create_time": time.time_ns() // 1_000_000}
    parts.runner.accept(QueuedPrompt(number, prompt_id, checked.prompt, extra_data, checked.outputs))
    node_errors = {node_id: entry.as_json() for node_id, entry in checked.node_problems.items()}
    return web.json_response({"prompt_id": prompt_id, "number": number, "node_errors": node_errors})


def _next_number(number: int, body: dict[str, object]) -> int:
    return -number if body.get("front") else number


async def get_queue(request: web.Request) -> web.Response:
    queue = services(request).queue
    running = [item.as_json() for item in queue.all_running]
    return web.json_response({"queue_running": running, "queue_pending": [item.as_json() for item in queue.waiting()]})


async def post_queue(request: web.Request) -> web.Response:
    """`clear` and `delete` (ids) of waiting prompts; the running one is `/interrupt`'s."""
    body = await read_object(request)
    parts = services(request)
    if body.get("clear"):
        parts.runner.clear()
    for prompt_id in _ids(body):
        parts.runner.delete(prompt_id)
    return web.Response()


async def get_history(request: web.Request) -> web.Response:
    offset = read_int(request, "offset")
    page = services(request).history.page(read_int(request, "max_items"), -1 if offset is None else offset)
    return web.json_response({entry.item.prompt_id: entry.as_json() for entry in page})


async def get_history_entry(request: web.Request) -> web.Response:
    """Send `{id: entry}`, or `{}` when there is none of that id (yet)."""
    entry = services(request).history.get(request.match_info["prompt_id"])
    return web.json_response({} if entry is None else {entry.item.prompt_id: entry.as_json()})


async def post_history(request: web.Request) -> web.Response:
    body = await read_object(request)
    history = services(request).history
    if body.get("clear"):
        history.clear()
    for prompt_id in _ids(body):
        history.delete(prompt_id)
    return web.Response()


async def post_interrupt(request: web.Request) -> web.Response:
    """Stop the running prompt, or with `prompt_id` only if it is that one."""
    body = await read_object(request, may_be_empty=True)
    await services(request).runner.interrupt(body.get("prompt_id") or None)
    return web.Response()


async def post_free(request: web.Request) -> web.Response:
    """Give back memory as soon as no prompt runs; answers at once."""
    body = await read_object(request)
    engine = services(request).start.engine_now()
    if engine is not None:
        engine.free(unload_models=bool(body.get("unload_models")), free_memory=bool(body.get("free_memory")))
    return web.Response()


def _ids(body: dict[str, object]) -> list[str]:
    ids = body.get("delete")
    return [str(prompt_id) for prompt_id in ids] if isinstance(ids, list) else []


ROUTES = (
    web.get("/prompt", get_prompt),
    web.post("/prompt", post_prompt),
    web.get("/queue", get_queue),
    web.post("/queue", post_queue),
    web.get("/history", get_history),
    web.get("/history/{prompt_id}", get_history_entry),
    web.post("/history", post_history),
    web.post("/interrupt", post_interrupt),
    web.post("/free", post_free),
)
