"""Extras of node packs for ComfyUI's web interface: translations, example workflows, blueprints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from darkroom.engine.server.services import services

EXAMPLE_FOLDERS = ("example_workflows", "example", "examples", "workflow", "workflows")
BLUEPRINT_FOLDER = "subgraphs"
TRANSLATED = {"main.json": None, "nodeDefs.json": "nodeDefs", "commands.json": "commands", "settings.json": "settings"}


async def get_translations(request: web.Request) -> web.Response:
    """Send the translations of all packs by language; `main.json` of a pack is spread, other files have their name."""
    return web.json_response(await asyncio.to_thread(_translations, await _packs(request)))


async def get_examples(request: web.Request) -> web.Response:
    """List the example workflows of each pack, without their extension."""
    packs = await _packs(request)
    found = await asyncio.to_thread(
        lambda: {name: [path.stem for path in _examples(folder)] for name, folder in packs.items()}
    )
    return web.json_response({name: stems for name, stems in found.items() if stems})


async def get_example(request: web.Request) -> web.StreamResponse:
    """Send an example workflow of a pack, or the image beside it."""
    folder = (await _packs(request)).get(request.match_info["pack"])
    name = request.match_info["file"]
    found = await asyncio.to_thread(lambda: None if folder is None else _example_file(folder, name))
    if found is None:
        raise web.HTTPNotFound(text="")
    return web.FileResponse(found)


async def get_blueprints(request: web.Request) -> web.Response:
    """List the sub-graph blueprints of all packs by id."""
    found = await asyncio.to_thread(_blueprints, await _packs(request))
    return web.json_response({key: about for key, (about, _) in found.items()})


async def get_blueprint(request: web.Request) -> web.Response:
    """Send a blueprint with its graph as text in `data`."""
    found = (await asyncio.to_thread(_blueprints, await _packs(request))).get(request.match_info["id"])
    if found is None:
        raise web.HTTPNotFound(text="")
    about, path = found
    return web.json_response({**about, "data": await asyncio.to_thread(path.read_text, "utf-8")})


async def _packs(request: web.Request) -> dict[str, Path]:
    """Return the folder of each pack that is a folder."""
    parts = services(request)
    await parts.start.engine()
    root = parts.settings.custom_nodes_path
    return {
        report.name: root / report.name
        for report in parts.packs.reports
        if await asyncio.to_thread((root / report.name).is_dir)
    }


def _translations(packs: Mapping[str, Path]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for folder in packs.values():
        for language in sorted((folder / "locales").glob("*/")):
            texts = found.setdefault(language.name, {})
            for file_name, key in TRANSLATED.items():
                read = _json_object(language / file_name)
                _merge(texts, read if key is None else {key: read} if read else {})
    return found


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _examples(folder: Path) -> Iterator[Path]:
    return (path for name in EXAMPLE_FOLDERS for path in sorted((folder / name).glob("*.json")))


def _example_file(folder: Path, name: str) -> Path | None:
    if "/" in name or "\\" in name or name.startswith("."):
        return None
    candidates = (folder / place / name for place in EXAMPLE_FOLDERS)
    return next((path for path in candidates if path.is_file()), None)


def _blueprints(packs: Mapping[str, Path]) -> dict[str, tuple[dict[str, object], Path]]:
    found: dict[str, tuple[dict[str, object], Path]] = {}
    for pack, folder in packs.items():
        for path in sorted((folder / BLUEPRINT_FOLDER).glob("*.json")):
            key = sha256(f"custom_nodes.{pack}/{path.name}".encode()).hexdigest()
            found[key] = (
                {"source": "custom_node", "name": path.stem, "info": {"node_pack": f"custom_nodes.{pack}"}},
                path,
            )
    return found


ROUTES = (
    web.get("/i18n", get_translations),
    web.get("/workflow_templates", get_examples),
    web.get("/workflow_templates/{pack}/{file}", get_example),
    web.get("/global_subgraphs", get_blueprints),
    web.get("/global_subgraphs/{id}", get_blueprint),
)
