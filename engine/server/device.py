"""`/api/v1/device`: which device the engine runs on, and what it does when it is asked."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from aiohttp import web

from darkroom.engine.errors import DeviceLost, OutOfMemory
from darkroom.engine.server.machine import system
from darkroom.engine.server.services import services


async def get_device(request: web.Request) -> web.Response:
    """Send the device's name, kind and UUID, the versions of its libraries, and the types models compute in."""
    engine = await services(request).start.engine()
    identity = await asyncio.to_thread(engine.measurements.device_identity)
    resolved = engine.resolved
    return web.json_response(
        {
            **asdict(identity),
            "processor": await asyncio.to_thread(engine.measurements.processor),
            "darkroom": system()["darkroom_version"],
            "unet_dtype": resolved.unet_dtype,
            "vae_dtype": resolved.vae_dtype,
            "text_encoder_dtype": resolved.text_encoder_dtype,
        }
    )


async def post_probe(request: web.Request) -> web.Response:
    """Measure the device, after the prompts that wait, and the disk of the models. Takes about two seconds.

    500 with `error` and `code` when the device cannot: it is lost, or has too little memory left.
    """
    engine = await services(request).start.engine()
    try:
        figures = await asyncio.wrap_future(engine.measurements.measure_device())
    except (OutOfMemory, DeviceLost) as error:
        return web.json_response({"error": str(error), "code": error.code}, status=500)
    disk = await asyncio.to_thread(engine.measurements.measure_disk)
    told: dict[str, Any] = {**asdict(figures), "disk": None if disk is None else asdict(disk)}
    return web.json_response(told)


ROUTES = (web.get("/api/v1/device", get_device), web.post("/api/v1/probe", post_probe))
