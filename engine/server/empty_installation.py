"""Routes of ComfyUI's web interface, answered as by an installation where nothing has been stored."""

from __future__ import annotations

from aiohttp import web

from engine.server import machine


async def get_settings(request: web.Request) -> web.Response:
    return web.json_response({})


async def get_users(request: web.Request) -> web.Response:
    return web.json_response({"storage": "server", "migrated": True})


async def get_userdata(request: web.Request) -> web.Response:
    return web.Response(status=404, text="Directory not found")


async def get_root(request: web.Request) -> web.Response:
    """There is no web interface here; say what this is instead."""
    return web.json_response({"service": "darkroom engine", "speaks": f"ComfyUI {machine.COMFYUI_VERSION} API"})


ROUTES = (
    web.get("/", get_root),
    web.get("/settings", get_settings),
    web.get("/users", get_users),
    web.get("/userdata", get_userdata),
    web.get("/i18n", get_settings),
    web.get("/workflow_templates", get_settings),
    web.get("/global_subgraphs", get_settings),
)
