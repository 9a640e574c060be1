"""`/view`, `/view_metadata`, `/upload/*`: files in and out of the input, output and temp folders.

No name leads out of its folder; refusals have ComfyUI's statuses. Disk and Pillow work runs off the event loop.
"""

from __future__ import annotations

import asyncio
import filecmp
import json
import mimetypes
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from aiohttp import web
from aiohttp.web_request import FileField
from PIL import Image

from darkroom.contract.graph.file_names import split_annotation
from darkroom.engine.server import view_images
from darkroom.engine.server.folders import folder_of, inside, is_unsafe_name
from darkroom.engine.server.requests import read_form
from darkroom.engine.server.services import services
from darkroom.engine.settings import EngineSettings

SHOWN_AS_DOWNLOAD = frozenset(
    {"text/html", "text/html-sandboxed", "application/xhtml+xml", "text/javascript", "text/css", "image/svg+xml"}
)
EXTRA_TYPES = {".webp": "image/webp", ".latent": "application/octet-stream"}

Save = Callable[[IO[bytes], Path], None]


async def get_view(request: web.Request) -> web.StreamResponse:
    """Send a file; with `preview` or `channel` an image made of it. 400 or 403 for names that climb, 404 for none."""
    path = _path_of(
        services(request).settings,
        request.query.get("filename"),
        request.query.get("subfolder", ""),
        request.query.get("type", "output"),
    )
    if not path.is_file():
        raise web.HTTPNotFound(text="")
    channel = request.query.get("channel", "")
    disposition = {"Content-Disposition": f'filename="{path.name}"'}
    try:
        if "preview" in request.query:
            body, media_type = await asyncio.to_thread(view_images.preview, path, request.query["preview"], channel)
            return web.Response(body=body, content_type=media_type, headers=disposition)
        if channel in ("rgb", "a"):
            make = view_images.without_alpha if channel == "rgb" else view_images.alpha_only
            return web.Response(body=await asyncio.to_thread(make, path), content_type="image/png", headers=disposition)
    except (OSError, ValueError, Image.DecompressionBombError) as error:  # Pillow's ways to say that it cannot
        why = str(error).replace(str(path), path.name)
        raise web.HTTPUnprocessableEntity(text=f"{path.name} cannot be shown as an image: {why}") from None
    return web.FileResponse(path, headers={**disposition, "Content-Type": _media_type(path)})


def _media_type(path: Path) -> str:
    media_type = EXTRA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return "application/octet-stream" if media_type in SHOWN_AS_DOWNLOAD else media_type


def _path_of(settings: EngineSettings, name: str | None, subfolder: str, kind: str) -> Path:
    """Return the path of a file that a client names. Raises the refusal."""
    if name is None:
        raise web.HTTPNotFound(text="")
    file_name, annotated = split_annotation(name)
    folder = folder_of(settings, annotated or kind)
    if is_unsafe_name(file_name) or folder is None:
        raise web.HTTPBadRequest(text="")
    inner = inside(folder, subfolder)
    if inner is None:
        raise web.HTTPForbidden(text="")
    return inner / os.path.basename(file_name)


async def get_view_metadata(request: web.Request) -> web.Response:
    """Send the `__metadata__` of a `.safetensors` file; 404 when there is none."""
    name = request.query.get("filename", "")
    engine = await services(request).start.engine()
    kind = request.match_info["folder"]
    metadata = await asyncio.to_thread(engine.file_families.metadata, kind, name)
    if metadata is None:
        raise web.HTTPNotFound(text="")
    return web.json_response(metadata)


async def post_upload_image(request: web.Request) -> web.Response:
    """Store `image` below the folder `type` (input) and `subfolder`; `overwrite` replaces a file of that name.

    Without it a file of the same content is kept and another gets a number: `up (1).png`.
    """
    form = await read_form(request)

    def save(source: IO[bytes], target: Path) -> None:
        with target.open("wb") as file:
            shutil.copyfileobj(source, file)

    return await _store(services(request).settings, form, save)


async def post_upload_mask(request: web.Request) -> web.Response:
    """Store the image `original_ref` names with the alpha of `image`."""
    settings = services(request).settings
    form = await read_form(request)
    try:
        reference = json.loads(_text(form.get("original_ref")))
        name, subfolder, kind = (
            reference["filename"],
            reference.get("subfolder") or "",
            reference.get("type") or "output",
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise web.HTTPBadRequest(text="original_ref is not a JSON object with a filename") from None
    original = _path_of(settings, str(name), str(subfolder), str(kind))
    if not original.is_file():
        raise web.HTTPNotFound(text=f"{original.name} is not there")
    return await _store(settings, form, lambda source, target: view_images.write_with_mask(original, source, target))


async def _store(settings: EngineSettings, form: Any, save: Save) -> web.Response:
    upload = form.get("image")
    if not isinstance(upload, FileField) or not upload.filename:
        raise web.HTTPBadRequest(text="")
    kind, subfolder = _text(form.get("type")) or "input", _text(form.get("subfolder"))
    root = folder_of(settings, kind)
    target = inside(root, subfolder, upload.filename) if root else None
    if root is None or target is None or inside(root, subfolder) is None or target == root:
        raise web.HTTPBadRequest(text="")
    overwrite = _text(form.get("overwrite")) in ("true", "1")
    try:
        stored = await asyncio.to_thread(_save_beside, upload.file, target, save, overwrite)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise web.HTTPBadRequest(text=f"{upload.filename} could not be stored: {error}") from None
    name = os.path.join(os.path.dirname(upload.filename), stored.name)
    return web.json_response({"name": name, "subfolder": subfolder, "type": kind})


def _save_beside(source: IO[bytes], target: Path, save: Save, overwrite: bool) -> Path:
    """Write to a hidden file, then move it in one step: nobody ever reads half an image."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, written_name = tempfile.mkstemp(prefix=".upload-", dir=target.parent)
    os.close(handle)
    written = Path(written_name)
    try:
        save(source, written)
        written.chmod(0o644)
        if overwrite:
            os.replace(written, target)
            return target
        return _move_to_free_name(written, target)
    finally:
        written.unlink(missing_ok=True)


def _move_to_free_name(written: Path, target: Path) -> Path:
    candidate, number = target, 0
    while True:
        try:
            os.link(written, candidate)  # fails when the name is taken, unlike a rename
            return candidate
        except FileExistsError:
            if candidate.is_file() and filecmp.cmp(written, candidate, shallow=False):
                return candidate
        number += 1
        candidate = target.with_name(f"{target.stem} ({number}){target.suffix}")


def _text(field: object) -> str:
    return field if isinstance(field, str) else ""


async def get_listing(request: web.Request) -> web.Response:
    """List the names in one of the three folders, newest first: the choices of LoadImageOutput."""
    folder = folder_of(services(request).settings, request.match_info["kind"])
    if folder is None:
        raise web.HTTPBadRequest(text="Invalid directory type")
    return web.json_response(await asyncio.to_thread(_newest_first, folder))


def _newest_first(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        files = [(entry.stat().st_mtime, entry.name) for entry in entries if entry.is_file()]
    return [name for _, name in sorted(files, reverse=True)]


ROUTES = (
    web.get("/view", get_view),
    web.get("/view_metadata/{folder}", get_view_metadata),
    web.post("/upload/image", post_upload_image),
    web.post("/upload/mask", post_upload_mask),
    web.get("/internal/files/{kind}", get_listing),
)
