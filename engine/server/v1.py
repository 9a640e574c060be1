"""`/api/v1`: the queue and the history as plain REST, the check of a workflow that does not run it, the heartbeat."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial

from aiohttp import web

from darkroom.contract.errors import Problem, PromptRejected
from darkroom.contract.graph.explain import explain, explain_rejection
from darkroom.contract.graph.file_names import is_pending
from darkroom.engine.server.history import HistoryEntry
from darkroom.engine.server.queue import QueuedPrompt
from darkroom.engine.server.requests import problem_response, read_int, read_object, read_targets
from darkroom.engine.server.services import services


async def get_queue(request: web.Request) -> web.Response:
    """List the running prompt, and the waiting ones with their positions from 1."""
    queue = services(request).queue
    waiting = [{**_queued(item), "position": place} for place, item in enumerate(queue.waiting(), start=1)]
    running = None if queue.running is None else _queued(queue.running)
    return web.json_response({"running": running, "waiting": waiting, "remaining": queue.remaining})


async def delete_queued(request: web.Request) -> web.Response:
    """Forget a waiting prompt; 404 when none of that id waits."""
    if not services(request).runner.delete(request.match_info["prompt_id"]):
        raise web.HTTPNotFound(text="")
    return web.Response(status=204)


async def get_history(request: web.Request) -> web.Response:
    """`limit` entries (all), newest first, after the first `offset`."""
    history = services(request).history
    entries = history.page()[::-1][max(0, read_int(request, "offset") or 0) :]
    limit = read_int(request, "limit")
    shown = entries if limit is None else entries[: max(0, limit)]
    return web.json_response({"entries": [_finished(entry) for entry in shown], "total": len(history)})


async def get_history_entry(request: web.Request) -> web.Response:
    entry = services(request).history.get(request.match_info["prompt_id"])
    if entry is None:
        raise web.HTTPNotFound(text="")
    return web.json_response({**_finished(entry), "prompt": entry.item.prompt})


async def delete_history_entry(request: web.Request) -> web.Response:
    if not services(request).history.delete(request.match_info["prompt_id"]):
        raise web.HTTPNotFound(text="")
    return web.Response(status=204)


def _queued(item: QueuedPrompt) -> dict[str, object]:
    return {
        "prompt_id": item.prompt_id,
        "number": item.number,
        "client_id": item.client_id,
        "outputs": list(item.outputs),
        "num_nodes": len(item.prompt),
    }


def _finished(entry: HistoryEntry) -> dict[str, object]:
    return {**_queued(entry.item), "status": entry.status, "results": entry.outputs, "meta": entry.meta}


async def post_workflow(request: web.Request) -> web.Response:
    """Validate a prompt without running it: every problem at once, and the models and classes it names.

    Names in `pending_files` are files that will be there when it runs: that they are missing is no problem.
    `errors` and `node_errors` are the problems in ComfyUI's form, `problems` the same as one list with all that a
    program needs: node, class, input, message, what is allowed. `unlisted_problems` is how many there are beyond those.
    200 with `valid` either way; 400 only for a body that holds no prompt.
    """
    body = await read_object(request)
    if "prompt" not in body:
        return problem_response(Problem("no_prompt", "No prompt provided", "No prompt provided", {}))
    pending = body.get("pending_files") or []
    if not isinstance(pending, list):
        return problem_response(Problem("invalid_pending_files", "pending_files is not a list", "", {}))
    targets = read_targets(body)
    checks = (await services(request).start.engine()).checks
    prompt = body["prompt"]
    excuses = partial(is_pending, {str(name) for name in pending})
    try:
        found, needs, explained = await asyncio.to_thread(  # together: a thread's turn costs more than a small graph
            lambda: (found := checks.find_problems(prompt, targets, excuses), checks.needs_of(prompt), explain(found))
        )
    except PromptRejected as rejected:
        return web.json_response(
            {
                "valid": False,
                "outputs": [],
                **rejected.as_json(),
                **explain_rejection(rejected).as_json(),
                **_no_needs(),
            }
        )
    errors = [problem.as_json() for problem in found.problems]
    return web.json_response(
        {
            "valid": not errors and not found.node_problems and not found.num_unlisted,
            "outputs": list(found.outputs),
            "error": errors[0] if errors else None,
            "errors": errors,
            "node_errors": {node_id: entry.as_json() for node_id, entry in found.node_problems.items()},
            **explained.as_json(),
            "models": [model.as_json() for model in needs.models],
            "missing_nodes": list(needs.missing_classes),
        }
    )


def _no_needs() -> dict[str, object]:
    return {"models": [], "missing_nodes": []}


async def post_memory_plan(request: web.Request) -> web.Response:
    """Send which weights the stages of `prompt` bring to the device, and who leaves for them; nothing is loaded.

    `vram_bytes` is the size of another card. `missing` gives `size_bytes` and `family` of files that are not there, by
    `folder/name`, `pixels` those that a node works on at once, by its id.
    """
    body = await read_object(request)
    total, missing, pixels = body.get("vram_bytes"), body.get("missing") or {}, body.get("pixels") or {}
    if total is not None and not (isinstance(total, int) and total > 0):
        return problem_response(Problem("invalid_vram_bytes", "vram_bytes is not a positive whole number", "", {}))
    if not isinstance(missing, dict) or not isinstance(pixels, dict):
        return problem_response(Problem("invalid_sizes", "missing and pixels are not objects", "", {}))
    files = {str(place): item for place, item in missing.items() if isinstance(item, dict)}
    areas = {str(node_id): item for node_id, item in pixels.items() if isinstance(item, int) and item > 0}
    checks = (await services(request).start.engine()).checks
    try:
        plan = await asyncio.to_thread(
            checks.memory_plan, body.get("prompt"), total_bytes=total, missing=files, pixels=areas
        )
    except PromptRejected as rejected:
        return web.json_response(rejected.as_json(), status=400)
    return web.json_response(plan.as_json())


async def get_heartbeat(request: web.Request) -> web.Response:
    """Answer while the event loop turns, with a counter that moves with the GPU thread.

    `events` grows with every step that a running prompt reports. `running` is the prompt that computes, of several.
    """
    parts = services(request)
    running = parts.runner.computing
    return web.json_response(
        {
            "engine_ready": parts.start.engine_now() is not None,
            "running": running,
            "node": parts.runner.node_of(running),
            "events": parts.runner.total_events,
            "seconds_since_event": parts.runner.seconds_since_event(),
            "waiting": len(parts.queue.waiting()),
        }
    )


async def get_nodes(request: web.Request) -> web.Response:
    """List the packs of custom nodes and the outcome of each at the start, once the engine is built.

    `versions` are the packs of `packs.toml` as they are on disk; `manifest_problem` what is wrong with it.
    """
    parts = services(request)
    engine = await parts.start.engine()
    reports = [report.as_json() for report in parts.packs.reports]
    versions, problem = await asyncio.to_thread(engine.pack_versions)
    body: dict[str, object] = {"packs": reports, "versions": [asdict(version) for version in versions]}
    return web.json_response({**body, "manifest_problem": problem} if problem else body)


ROUTES = (
    web.get("/api/v1/nodes", get_nodes),
    web.get("/api/v1/queue", get_queue),
    web.delete("/api/v1/queue/{prompt_id}", delete_queued),
    web.get("/api/v1/history", get_history),
    web.get("/api/v1/history/{prompt_id}", get_history_entry),
    web.delete("/api/v1/history/{prompt_id}", delete_history_entry),
    web.post("/api/v1/workflow", post_workflow),
    web.post("/api/v1/memory_plan", post_memory_plan),
    web.get("/api/v1/heartbeat", get_heartbeat),
)
