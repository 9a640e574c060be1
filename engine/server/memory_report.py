"""`/api/v1/preload`: models read before the first prompt that names them. `/api/v1/memory`, `/metrics`: figures."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from aiohttp import web

from darkroom.contract.errors import CallerError, Problem
from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.errors import OutOfMemory
from darkroom.engine.server.machine import system
from darkroom.engine.server.requests import problem_response, read_object
from darkroom.engine.server.services import services

if TYPE_CHECKING:
    from darkroom.engine.engine import Engine, MemoryReport
    from darkroom.engine.server.metrics import MemoryFigures


async def post_preload(request: web.Request) -> web.Response:
    """Preload `{"models": [{"kind": "checkpoints", "name": "a.safetensors"}], "keep": true}`, one after the other.

    `kind` is `checkpoints` unless given. Answers when all are read: `{"models": [{kind, name, bytes, seconds}]}`, with
    `error` in the place of `bytes` for one that cannot be, and 422 when there is such a one.
    """
    body = await read_object(request)
    problem = _problem(body)
    if problem is not None:
        return problem_response(problem)
    engine = await services(request).start.engine()
    # Not imported above: darkroom.engine.engine imports torch, and the server answers before that is there.
    from darkroom.engine.engine import PRELOADED_KINDS

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


def _problem(body: dict[str, object]) -> Problem | None:
    models = body.get("models")
    if not isinstance(models, list) or not all(isinstance(item, dict) for item in models):
        return Problem("invalid_models", "models is not a list of objects", repr(models), {"input_name": "models"})
    for item in models:
        if not isinstance(item.get("name"), str) or not isinstance(item.get("kind", ""), str):
            return Problem("invalid_models", "a model needs a name, a text", repr(item), {"input_name": "models"})
    if not isinstance(body.get("keep", True), bool):
        return Problem("invalid_keep", "keep is neither true nor false", repr(body["keep"]), {"input_name": "keep"})
    return None


async def get_memory(request: web.Request) -> web.Response:
    """Send every figure of model memory."""
    engine = await services(request).start.engine()
    return web.json_response(memory_json(await asyncio.to_thread(engine.memory.report)))


async def get_metrics(request: web.Request) -> web.Response:
    """Send the figures of memory, models, runs, sampling and batches in Prometheus' text format."""
    parts = services(request)
    engine = await parts.start.engine()
    report = await asyncio.to_thread(engine.memory.report)
    # Not imported above: prometheus-client takes a tenth of the time until the server answers.
    from darkroom.engine.server.metrics import METRICS_TYPE, EngineMetrics, exposition

    failures = engine.tuner.failures
    metrics = EngineMetrics(_figures(report), parts.figures, _batches(engine), failures, _info(report))
    return web.Response(body=exposition(metrics), headers={"Content-Type": METRICS_TYPE})


def _info(report: MemoryReport) -> dict[str, str]:
    about = system()
    return {
        "version": str(about["darkroom_version"] or "source"),
        "torch": str(about["pytorch_version"]),
        "device": report.device.name,
    }


def memory_json(report: MemoryReport) -> ValueDict:
    pool = report.pool
    return {
        "state": report.state,
        "device": {"name": report.device.name, **_device_figures(report)},
        "models": [asdict(model) for model in pool.models],
        "pinned": {"bytes": report.pinned_bytes, "limit_bytes": report.pinned_limit_bytes},
        "ram": {
            "available_bytes": report.ram_available_bytes,
            "total_bytes": report.ram_total_bytes,
            "models_bytes": pool.ram_bytes,
        },
        "counts": _counts(report),
        "relief_steps": report.relief_steps,
    }


def _device_figures(report: MemoryReport) -> dict[str, int | None]:
    return {
        "total_bytes": report.device.vram_total_bytes,
        "free_bytes": report.device.vram_free_bytes,
        "models_bytes": report.pool.device_bytes,
        "buffers_bytes": report.buffers_bytes,
        "allocated_bytes": report.allocated_bytes,
        "unaccounted_bytes": report.unaccounted_bytes,
        "peak_bytes": report.peak_bytes,
    }


def _counts(report: MemoryReport) -> dict[str, int]:
    pool = report.pool
    return {
        "loads": pool.num_loads,
        "evictions": pool.num_evictions,
        "evicted_bytes": pool.evicted_bytes,
        "dropped_from_ram": pool.num_dropped,
        "leaks": pool.num_leaks,
        "blocks_brought": report.num_streamed,
        "brought_bytes": report.streamed_bytes,
    }


def _figures(report: MemoryReport) -> MemoryFigures:
    from darkroom.engine.server.metrics import MemoryFigures

    gauges: dict[str, int | None] = {f"device_{name}": value for name, value in _device_figures(report).items()}
    gauges |= {"pinned_bytes": report.pinned_bytes, "pinned_limit_bytes": report.pinned_limit_bytes}
    gauges |= {"ram_available_bytes": report.ram_available_bytes, "ram_total_bytes": report.ram_total_bytes}
    gauges |= {"models": report.pool.num_models, "models_ram_bytes": report.pool.ram_bytes}
    uses = {str(level): count for level, count in report.pool.uses.items()}
    return MemoryFigures(
        gauges,
        _counts(report) | {"failed_reads": report.num_failed_reads},
        report.relief_steps,
        report.read_seconds,
        report.pool.load_seconds,
        uses,
    )


def _batches(engine: Engine) -> dict[str, int]:
    figures = engine.runs.batch_figures
    return {
        "batched_evaluations": figures.evaluations,
        "batches": figures.batches,
        "batch_rows": figures.rows,
        "batch_padded_rows": figures.padded_rows,
    }


ROUTES = (
    web.post("/api/v1/preload", post_preload),
    web.get("/api/v1/memory", get_memory),
    web.get("/metrics", get_metrics),
)
