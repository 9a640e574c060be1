"""GET /models/hint: model files by level, for those that route by it. GET /models/preview: a model's image."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from darkroom.worker.api.declared import refusals
from darkroom.worker.api.replies.plan import ModelHints
from darkroom.worker.api.results import check_caller, services_of
from darkroom.worker.api.services import EngineServices, Services
from darkroom.worker.errors import EngineUnreachable
from darkroom.worker.models.files import list_models

router = APIRouter(tags=["worker"])

MEMORY_SECONDS: Final = 2.0
MAX_NAMES: Final = 100
PREVIEW_PX: Final = 256


@router.get(
    "/models/hint",
    operation_id="get_model_hint",
    response_model=ModelHints,
    responses=refusals(401, 403, 429),
)
async def hint(
    request: Request,
    name: Annotated[list[str], Query(description="Files to tell the level of", max_length=MAX_NAMES)] = [],  # noqa: B006
) -> dict[str, Any]:
    """Return the model files of this worker, those under way, the models that its engines hold, and the disk's room."""
    check_caller(request)
    services = services_of(request)
    models = services.files.models
    on_disk = await asyncio.to_thread(list_models, models.library.directory)
    uses = {use.place: use for use in await asyncio.to_thread(models.disk.listed)}
    files = [
        {
            "place": file.name,
            "size_bytes": file.size_bytes,
            "used_at": uses[file.name].used_at_seconds if file.name in uses else None,
            "num_uses": uses[file.name].num_uses if file.name in uses else 0,
        }
        for file in on_disk
    ]
    fetching = [
        {"name": item.name, "percent": round(item.percent, 1), "size_bytes": item.total_bytes or None}
        for item in models.in_flight()
    ]
    loaded = await _loaded(services.engines)
    there, coming = {file.name for file in on_disk}, {item.name for item in models.in_flight()}
    return {
        "files": files,
        "fetching": fetching,
        "loaded": loaded,
        "asked": {
            item: _level_in_memory(item, loaded) or await asyncio.to_thread(_level_of, services, item, there, coming)
            for item in name
        },
    }


@router.get(
    "/models/preview",
    operation_id="get_model_preview",
    response_class=Response,
    responses={
        200: {"content": {"image/webp": {}}},
        204: {"description": "The file has no preview image"},
        **refusals(401, 403, 422, 429),
    },
)
async def preview(
    request: Request,
    folder: Annotated[str, Query(min_length=1, max_length=100, description="Kind of model, such as `loras`")],
    name: Annotated[str, Query(min_length=1, max_length=1000, description="File below that folder")],
) -> Response:
    """Return the image that lies beside a model file, or within it; 204 without one.

    It is at most 256 px large, or as it is where the engine is not ours.
    """
    check_caller(request)
    engine = services_of(request).engines.pool.any_client
    try:
        image = await engine.calls.model_preview(folder, name, PREVIEW_PX)
    except EngineUnreachable:
        return Response(status_code=204)
    headers = {"Cache-Control": "private, max-age=300"}
    if image is None:
        return Response(status_code=204, headers=headers)
    return Response(image, media_type="image/webp", headers=headers)


def _level_in_memory(name: str, loaded: list[dict[str, Any]]) -> str:
    """Return `vram` or `ram` where an engine holds a part of a file; our engine names a part by its file and role."""
    file_name = name.rpartition("/")[2]
    levels = {model["level"] for model in loaded if f"{model['name']} ".startswith(f"{file_name} ")}
    return next((level for level in ("vram", "ram") if level in levels), "")


def _level_of(services: Services, name: str, there: set[str], coming: set[str]) -> str:
    """Return the nearest level that has a file: `disk`, `fetching`, `shared`, `network`, or `none`."""
    if any(place == name or place.partition("/")[2] == name for place in there):
        return "disk"
    if name in coming or name.partition("/")[2] in coming:
        return "fetching"
    return services.files.models.level_beyond_disk(name)


async def _loaded(engines: EngineServices) -> list[dict[str, Any]]:
    """Return the models that engines of ours hold, as they report them; an engine that does not answer is left out."""
    found: list[dict[str, Any]] = []
    for engine in engines.pool.clients_serving:
        if engine.has_check:
            try:
                _, answer = await engine.calls.ask("GET", "/api/v1/memory", timeout_seconds=MEMORY_SECONDS)
            except EngineUnreachable:
                continue
            models = answer.get("models")
            found += (
                [_as_json(item) for item in models if isinstance(item, Mapping)] if isinstance(models, list) else []
            )
    return found


def _as_json(model: Mapping[str, Any]) -> dict[str, Any]:
    is_on_device = bool(model.get("on_device")) and bool(model.get("loaded_bytes"))
    level = "vram" if is_on_device else "ram" if model.get("ram_bytes") or model.get("loaded_bytes") else "file"
    return {"name": str(model.get("name")), "level": level, "size_bytes": model.get("size_bytes")}
