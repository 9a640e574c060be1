"""GET /, /admin and /page/{name}: the worker's own pages, static files of this package.

The pages run no script that is within them, so that their Content-Security-Policy allows none.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response

from darkroom.worker.api.page_headers import policy_for
from darkroom.worker.api.results import refuse
from darkroom.worker.errors import RouteNotFound

router = APIRouter(include_in_schema=False)

FOLDER: Final = "page"
MEDIA_TYPES: Final = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}


@router.get("/", response_class=HTMLResponse)
async def index() -> Response:
    """Return the page that draws images."""
    return own_page("index.html")


@router.get("/admin", response_class=HTMLResponse)
async def admin() -> Response:
    """Return the operator's page. It holds no data: it asks the operator's routes with the operator's key."""
    return own_page("admin.html")


@router.get("/page/{name}", response_class=FileResponse)
async def part_of_page(name: str) -> Response:
    """Return a script, style or icon of the pages."""
    path = _folder() / name
    media_type = MEDIA_TYPES.get(path.suffix)
    if media_type is None or path.parent != _folder() or not path.is_file():
        return refuse(RouteNotFound(f"No file {name[:100]} of the pages"))
    return FileResponse(path, media_type=media_type, headers={"Cache-Control": "no-cache"})


def own_page(name: str) -> HTMLResponse:
    """Return a page of this package with its Content-Security-Policy."""
    page = (_folder() / name).read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": policy_for(page), "Cache-Control": "no-cache"}
    return HTMLResponse(page, headers=headers)


def _folder() -> Path:
    return Path(str(files("darkroom.worker.api") / FOLDER))
