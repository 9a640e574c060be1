"""`/object_info`, `/models`, `/embeddings`, `/system_stats`, and the like: what this engine has."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from aiohttp import web

from darkroom.contract.graph.spec import ValueDict
from darkroom.engine.server import machine
from darkroom.engine.server.assets import HAS_ASSETS
from darkroom.engine.server.memory_report import memory_json
from darkroom.engine.server.services import services
from darkroom.engine.settings import EngineSettings

if TYPE_CHECKING:
    from darkroom.engine.engine import DeviceReport

NOT_MODELS = ("configs", "custom_nodes")


def features(settings: EngineSettings) -> dict[str, object]:
    """Return the features that clients may rely on; also the answer to a client's feature flags."""
    return {
        "supports_preview_metadata": True,
        "supports_model_type_tags": True,
        "max_upload_size": round(settings.max_upload_mb * 1024 * 1024),
        "extension": {"manager": {"supports_v4": True}},  # told by ComfyUI with and without its manager
        "node_replacements": True,
        "assets": HAS_ASSETS,
    }


async def get_node_replacements(request: web.Request) -> web.Response:
    """Answer that no class of nodes has to be replaced: those that newer ones took the place of are here."""
    return web.json_response({})


async def get_object_info(request: web.Request) -> web.Response:
    engine = await services(request).start.engine()
    return web.json_response(await asyncio.to_thread(engine.object_info))


async def get_object_info_of(request: web.Request) -> web.Response:
    """Send `{class: info}`, or `{}` for an unknown class."""
    engine = await services(request).start.engine()
    return web.json_response(await asyncio.to_thread(engine.object_info, request.match_info["class_type"]))


async def get_model_kinds(request: web.Request) -> web.Response:
    engine = await services(request).start.engine()
    return web.json_response(list(engine.folders.kinds()))


async def get_models(request: web.Request) -> web.Response:
    """List the files of one kind; 404 for an unknown kind."""
    engine = await services(request).start.engine()
    kind = request.match_info["folder"]
    if kind not in engine.folders.kinds():
        raise web.HTTPNotFound(text="")
    return web.json_response(await asyncio.to_thread(engine.folders.names, kind))


async def get_embeddings(request: web.Request) -> web.Response:
    """List the embeddings by the names that prompts use: without ending."""
    engine = await services(request).start.engine()
    files = await asyncio.to_thread(engine.folders.names, "embeddings")
    return web.json_response([os.path.splitext(name)[0] for name in files])


async def get_model_folders(request: web.Request) -> web.Response:
    engine = await services(request).start.engine()
    kinds = [kind for kind in engine.folders.kinds() if kind not in NOT_MODELS]
    return web.json_response(
        [{"name": kind, "folders": [str(path) for path in engine.folders.roots(kind)]} for kind in kinds]
    )


async def get_system_stats(request: web.Request) -> web.Response:
    """Send memory and devices, at once where no accelerator can be."""
    parts = services(request)
    engine = parts.start.engine_now()
    if engine is None and (parts.settings.cpu or not machine.may_have_gpu()):
        devices = [machine.cpu_device()]
    else:
        engine = engine or await parts.start.engine()
        devices = [_device(await asyncio.to_thread(engine.memory.device.report))]
    stats: dict[str, Any] = {"system": machine.system(), "devices": devices}
    if engine is not None:
        memory = memory_json(await asyncio.to_thread(engine.memory.report))
        stats["darkroom_memory"] = memory
        # What this process may take, which in a container is not the machine's.
        stats["system"] |= {"ram_total": memory["ram"]["total_bytes"], "ram_free": memory["ram"]["available_bytes"]}
    return web.json_response(stats)


def _device(report: DeviceReport) -> ValueDict:
    return {
        "name": report.name,
        "type": report.type,
        "index": report.index,
        "vram_total": report.vram_total_bytes,
        "vram_free": report.vram_free_bytes,
        "torch_vram_total": report.torch_vram_total_bytes,
        "torch_vram_free": report.torch_vram_free_bytes,
    }


async def get_features(request: web.Request) -> web.Response:
    return web.json_response(features(services(request).settings))


ROUTES = (
    web.get("/object_info", get_object_info),
    web.get("/object_info/{class_type}", get_object_info_of),
    web.get("/models", get_model_kinds),
    web.get("/models/{folder}", get_models),
    web.get("/embeddings", get_embeddings),
    web.get("/experiment/models", get_model_folders),
    web.get("/system_stats", get_system_stats),
    web.get("/features", get_features),
    web.get("/node_replacements", get_node_replacements),
)
