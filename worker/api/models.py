"""GET /models/known, POST /models/fetch: the models that the worker knows, and their installation by an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from fastapi import APIRouter, Request
from pydantic import ConfigDict, Field

from darkroom.host.memory import total_bytes
from darkroom.worker.api.body_sizes import takes_little
from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.models import FetchBegun, KnownModels
from darkroom.worker.api.results import check_operator, services_of
from darkroom.worker.api.services import EngineServices, FileServices
from darkroom.worker.errors import EngineUnreachable, Problem, RequestRejected
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.models.catalogue import KnownModel, Room, catalogue
from darkroom.worker.models.errors import UnknownModel
from darkroom.worker.models.eviction import FileUse
from darkroom.worker.models.files import list_models

router = APIRouter(tags=["worker"])

PROCESSOR: Final = "cpu"
MAX_NAME_LENGTH: Final = 300


class FetchRequest(RequestModel):
    """A model to fetch, by a name that `/models/known` lists."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=MAX_NAME_LENGTH)


@router.get(
    "/models/known",
    operation_id="list_known_models",
    response_model=None,
    responses={200: {"model": KnownModels}, **refusals(401, 403, 429)},
)
async def known(request: Request) -> dict[str, Any]:
    """Return the models that `/models/fetch` knows: size, licence, whether they are here and fit. For an operator.

    `fits`: `yes`, `streamed` (from RAM, layer by layer), `no`, `?` (a size is not known), `as its model` (an adapter).
    """
    check_operator(request)
    services = services_of(request)
    files, room = services.files, await _room(services.engines)
    there = {file.name for file in await asyncio.to_thread(list_models, files.models.library.directory)}
    uses = {use.place: use for use in await asyncio.to_thread(files.models.disk.listed)}
    coming = {item.place: round(item.percent, 1) for item in files.models.in_flight()}
    models = catalogue(files.models.library.manifest, there, room)
    return {
        "device_bytes": room.device_bytes,
        "is_processor": room.is_processor,
        "models": [_shown(model, files, uses, coming) for model in models],
    }


@router.post(
    "/models/fetch",
    operation_id="fetch_model",
    status_code=202,
    response_model=FetchBegun,
    responses=refusals(401, 403, 413, 422, 429),
)
@takes_little
async def fetch(asked: FetchRequest, request: Request) -> dict[str, Any]:
    """Begin to fetch a known model, each of its files that is not here. For an operator; `/models/known` shows it."""
    check_operator(request)
    files = services_of(request).files
    try:
        entries = files.models.library.manifest.named(asked.name)
    except UnknownModel as error:
        raise RequestRejected([Problem(str(error), field="name", type="unknown_model")]) from None
    missing = [entry for entry in entries if not await asyncio.to_thread(files.models.disk.has, entry.place)]
    files.asked_downloads.begin(missing)
    return {"name": asked.name, "files": [entry.place for entry in missing]}


async def _room(engines: EngineServices) -> Room:
    """Return the memory of the smallest device of the engines, all of which have to run a job."""
    found: list[tuple[int, bool]] = []
    for engine in engines.pool.clients_serving:
        try:
            devices = (await engine.calls.system_stats()).get("devices")
        except EngineUnreachable:
            continue
        for device in devices if isinstance(devices, list) else ():
            if isinstance(device, Mapping) and isinstance(size := device.get("vram_total"), int) and size > 0:
                found.append((size, device.get("type") == PROCESSOR))
    size_bytes, is_processor = min(found, default=(None, False))
    return Room(size_bytes, await asyncio.to_thread(total_bytes), is_processor)


def _shown(
    model: KnownModel, files: FileServices, uses: Mapping[str, FileUse], coming: Mapping[str, float]
) -> dict[str, Any]:
    places = [entry.place for entry in model.entries]
    under_way = [place for place in places if place in coming or files.asked_downloads.is_under_way(place)]
    problems = [problem for place in places if (problem := files.asked_downloads.problem_of(place))]
    return {
        "name": model.name,
        "label": model.label,
        "group": model.group.value,
        "families": list(model.families),
        "licences": list(model.licences),
        "is_gated": model.is_gated,
        "size_bytes": model.size_bytes if model.is_size_known else None,
        "is_size_exact": model.is_size_exact,
        "num_files": len(places),
        "num_here": model.num_here,
        "fits": model.fit.value,
        "used_at": max((uses[place].used_at_seconds for place in places if place in uses), default=None),
        "percent": min((coming.get(place, 0.0) for place in under_way), default=None),
        "problem": problems[0] if problems else None,
    }
