"""Routes of ComfyUI's web interface, answered as by an installation where nothing has been stored.

They are those of an engine without `--front-end`, which keeps nothing: settings are taken and forgotten (a web
interface would not start otherwise), files of users are refused, so that nobody believes them to be safe.
"""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from darkroom.engine.server import machine
from darkroom.engine.server.folders import inside

USER_FOLDER = Path("/user/default")  # no such folder: only to tell names that climb out of it
NOTHING_IS_KEPT = "this engine keeps no files of users"


async def get_nothing(request: web.Request) -> web.Response:
    return web.json_response({})


async def get_setting(request: web.Request) -> web.Response:
    return web.json_response(None)


async def post_setting(request: web.Request) -> web.Response:
    return web.Response()


async def get_users(request: web.Request) -> web.Response:
    return web.json_response({"storage": "server", "migrated": True})


async def post_users(request: web.Request) -> web.Response:
    return web.json_response({"error": NOTHING_IS_KEPT}, status=403)


async def get_userdata(request: web.Request) -> web.Response:
    folder = request.query.get("dir", "")
    if not folder:
        return web.Response(status=400, text="Directory not provided")
    if inside(USER_FOLDER, folder) is None:
        return web.Response(status=403, text="Invalid directory")
    return web.Response(status=404, text="Directory not found")


async def get_userdata_listing(request: web.Request) -> web.Response:
    folder = request.query.get("path", "")
    if inside(USER_FOLDER, folder) is None:
        return web.Response(status=400, text="Invalid path requested")
    return web.json_response([]) if not folder else web.Response(status=404, text="Requested path not found")


async def get_userdata_file(request: web.Request) -> web.Response:
    return web.Response(status=404 if inside(USER_FOLDER, request.match_info["file"]) else 403)


async def post_userdata_file(request: web.Request) -> web.Response:
    return web.Response(status=403, text=NOTHING_IS_KEPT)


async def get_logs(request: web.Request) -> web.Response:
    """Answer with an empty log: it goes to standard error alone."""
    return web.json_response("")


async def get_raw_logs(request: web.Request) -> web.Response:
    return web.json_response({"entries": [], "size": {"cols": 0, "rows": 0}})


async def patch_log_subscription(request: web.Request) -> web.Response:
    return web.Response()


async def get_root(request: web.Request) -> web.Response:
    """Explain that there is no web interface here."""
    return web.json_response({"service": "darkroom engine", "speaks": f"ComfyUI {machine.COMFYUI_VERSION} API"})


ROUTES = (
    web.get("/", get_root),
    web.get("/settings", get_nothing),
    web.get("/settings/{id}", get_setting),
    web.post("/settings", post_setting),
    web.post("/settings/{id}", post_setting),
    web.get("/users", get_users),
    web.post("/users", post_users),
    web.get("/userdata", get_userdata),
    web.get("/v2/userdata", get_userdata_listing),
    web.get("/userdata/{file}", get_userdata_file),
    web.post("/userdata/{file}", post_userdata_file),
    web.delete("/userdata/{file}", get_userdata_file),
    web.post("/userdata/{file}/move/{dest}", get_userdata_file),
    web.get("/internal/logs", get_logs),
    web.get("/internal/logs/raw", get_raw_logs),
    web.patch("/internal/logs/subscribe", patch_log_subscription),
    web.get("/i18n", get_nothing),
    web.get("/workflow_templates", get_nothing),
    web.get("/global_subgraphs", get_nothing),
    web.get("/global_subgraphs/{id}", get_setting),
)
