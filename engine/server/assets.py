"""ComfyUI's `/api/assets`, its database of files, answered as by a server where it is switched off, ComfyUI's default.

Clients learn it from the feature flag `assets` too. What this engine reads and saves is in folders, by name.
"""

from __future__ import annotations

from aiohttp import web

HAS_ASSETS = False
ID = "{id:[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}}"
DISABLED = {
    "code": "SERVICE_DISABLED",
    "message": "assets: this engine keeps no database of files; name a file by its folder, as /view and /prompt do",
    "details": {},
}


async def refuse(request: web.Request) -> web.Response:
    return web.json_response({"error": DISABLED}, status=503)


ROUTES = (
    web.head("/api/assets/hash/{hash}", refuse),
    web.get("/api/assets", refuse, allow_head=False),
    web.post("/api/assets", refuse),
    web.post("/api/assets/from-hash", refuse),
    web.get("/api/assets/tags/refine", refuse, allow_head=False),
    web.post("/api/assets/seed", refuse),
    web.get("/api/assets/seed/status", refuse, allow_head=False),
    web.post("/api/assets/seed/cancel", refuse),
    web.post("/api/assets/prune", refuse),
    web.get(f"/api/assets/{ID}", refuse, allow_head=False),
    web.put(f"/api/assets/{ID}", refuse),
    web.delete(f"/api/assets/{ID}", refuse),
    web.get(f"/api/assets/{ID}/content", refuse, allow_head=False),
    web.post(f"/api/assets/{ID}/tags", refuse),
    web.delete(f"/api/assets/{ID}/tags", refuse),
    web.get("/api/tags", refuse, allow_head=False),
)
