"""ComfyUI's own web interface (`--front-end`): its static files, its workflow templates, and the routes it needs.

The files are those of the packages `comfyui-frontend-package` and `comfyui-workflow-templates` (the extra
`front-end`), or of a folder (`--front-end-root`). Nothing of them is imported. The templates are in several packages:
the workflows in `comfyui-workflow-templates-json`, their images in others, which need not be there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

from aiohttp import web

from darkroom.engine.server import log_tail, pack_extras, user_files
from darkroom.engine.server.log_tail import LOG_TAIL, LogTail
from darkroom.engine.server.services import SERVICES

KINDS = {".webp": "image/webp", ".woff2": "font/woff2", ".avif": "image/avif"}  # unknown to Python 3.11
PACKAGE, TEMPLATES_PREFIX = "comfyui_frontend_package", "comfyui_workflow_templates"
INDEX = "index.html"
OWN_STYLE = "user.css"
IMAGES = (".webp", ".png", ".jpg", ".gif")
NO_IMAGE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 9"><path fill="#333" d="M0 0h16v9H0z"/></svg>'
ICON, ICON_PATH = "favicon.ico", "assets/favicon.ico"


class FrontEndMissing(Exception):
    """Error for `--front-end` without the files of the interface."""


def find_front_end(root: Path | None) -> Path:
    """Return the folder with the interface's files. Raises FrontEndMissing."""
    folder = _folder_of(PACKAGE, "static") if root is None else root.expanduser().resolve()
    if folder is None:
        raise FrontEndMissing("--front-end: comfyui-frontend-package is not installed; install the extra `front-end`")
    if not (folder / INDEX).is_file():
        raise FrontEndMissing(f"--front-end: no {INDEX} in the folder; got {folder}")
    return folder


def find_templates() -> tuple[Path, ...]:
    """Return the folders with the official workflow templates and their images; none without the packages."""
    names = {(item.name or "").lower().replace("-", "_") for item in distributions()}
    found = (_folder_of(name, "templates") for name in sorted(names) if name.startswith(TEMPLATES_PREFIX))
    return tuple(folder for folder in found if folder is not None)


def add_front_end(app: web.Application, folder: Path) -> None:
    """Add the state that the routes need: the folders, and the tail of the log while the server is up."""
    app[FOLDER], app[TEMPLATES] = folder, find_templates()
    app[user_files.SETTINGS_LOCK] = asyncio.Lock()

    async def keep_log(app: web.Application) -> AsyncIterator[None]:
        tail = LogTail(app[SERVICES].clients, asyncio.get_running_loop())
        app[LOG_TAIL] = tail
        logging.getLogger().addHandler(tail)
        yield
        logging.getLogger().removeHandler(tail)

    app.cleanup_ctx.append(keep_log)


async def get_index(request: web.Request) -> web.StreamResponse:
    headers = {"Cache-Control": "no-cache"}
    return web.FileResponse(request.app[FOLDER] / INDEX, headers=headers)


async def get_template(request: web.Request) -> web.StreamResponse:
    """Send a file of the official templates: the index, a workflow, an image, or a plain one where it is missing."""
    name = request.match_info["file"]
    for folder in request.app[TEMPLATES]:
        with contextlib.suppress(web.HTTPNotFound):
            return await _file_in(folder, name)
    if request.app[TEMPLATES] and name.endswith(IMAGES):
        return web.Response(text=NO_IMAGE, content_type="image/svg+xml")
    raise web.HTTPNotFound(text="")


async def find_static(request: web.Request) -> web.StreamResponse | None:
    """Return a file of the interface as a response; None without `--front-end` and for a path that is no such file."""
    folder = request.app.get(FOLDER)
    if folder is None or request.method not in ("GET", "HEAD"):
        return None
    name = request.match_info["path"]
    if name == OWN_STYLE:  # the page names it, and the package has no such file
        return web.Response(content_type="text/css")
    with contextlib.suppress(web.HTTPNotFound):
        return await _file_in(folder, ICON_PATH if name == ICON else name)
    return None


async def get_own_extension(request: web.Request) -> web.StreamResponse:
    """Send a script that packs import from the interface."""
    return await _file_in(request.app[FOLDER] / "extensions" / "core", request.match_info["file"])


async def _file_in(folder: Path, name: str) -> web.StreamResponse:
    path = None if "\0" in name else await asyncio.to_thread(_existing, folder, name)
    if path is None:
        raise web.HTTPNotFound(text="")
    kind = KINDS.get(path.suffix)
    return web.FileResponse(path, headers={} if kind is None else {"Content-Type": kind})


def _existing(folder: Path, name: str) -> Path | None:
    """Return the path of a file of the folder; None for one outside of it, or that is not there."""
    path = (folder / name).resolve()
    return path if path.is_relative_to(folder.resolve()) and path.is_file() else None


def _folder_of(package: str, name: str) -> Path | None:
    spec = find_spec(package)
    places = () if spec is None else tuple(spec.submodule_search_locations or ())
    return next((Path(place) / name for place in places if (Path(place) / name).is_dir()), None)


FOLDER = web.AppKey("front_end", Path)
TEMPLATES = web.AppKey("templates", tuple[Path, ...])

ROUTES = (
    web.get("/", get_index),
    web.get("/templates/{file:.+}", get_template),
    web.get("/extensions/core/{file:.+}", get_own_extension),
    *user_files.ROUTES,
    *pack_extras.ROUTES,
    *log_tail.ROUTES,
)
