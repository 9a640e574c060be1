"""References to assets in a request: `asset:ID` where a file goes, and ComfyUI's `core/ASSET` objects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

from darkroom.worker.api.schemas import GenerateInput, ParsedRequest
from darkroom.worker.api.services import Services
from darkroom.worker.errors import AssetNotFound, Problem, RequestRejected
from darkroom.worker.json.values import object_at

PREFIX: Final = "asset:"
TYPE: Final = "core/ASSET"
FIELDS: Final = ("modifications", "overrides", "inputs")


@contextlib.asynccontextmanager
async def with_assets(services: Services, parsed: ParsedRequest, owner: str) -> AsyncIterator[ParsedRequest]:
    """Yield the request with the assets that it names among its files. Raises RequestRejected for an unknown one.

    Copies that the job has not kept are removed at the end.
    """
    found: dict[str, str] = {}
    given = _with_names(parsed.input, found)
    if not found:
        yield parsed
        return
    try:
        lent = await services.files.assets.lend(dict.fromkeys(found), owner)
    except AssetNotFound as error:
        field = next((place for asset_id, place in found.items() if asset_id in error.message), None)
        raise RequestRejected([Problem(error.message, field, type="missing_asset")]) from None
    files = {f"{PREFIX}{asset_id}": file for asset_id, file in lent.items()}
    try:
        yield replace(parsed, input=given, files={**parsed.files, **files})
    finally:
        for file in files.values():
            await asyncio.to_thread(file.path.unlink, missing_ok=True)


def fields_with_assets(given: GenerateInput) -> list[str]:
    """Return the fields of an input that name an asset, one for each asset."""
    found: dict[str, str] = {}
    _with_names(given, found)
    return list(found.values())


def _with_names(given: GenerateInput, found: dict[str, str]) -> GenerateInput:
    """Return the input with `asset:ID` for every reference; `found` gets the ids, each with its field."""
    changed: dict[str, Any] = {
        name: {key: _named(value, f"input.{name}.{key}", found) for key, value in getattr(given, name).items()}
        for name in FIELDS
    }
    nodes = {}
    for node_id, node in given.workflow_json.items():
        inputs = object_at(node, "inputs")
        if inputs and isinstance(node, Mapping):
            field = f"input.workflow_json.{node_id}"
            node = {**node, "inputs": {key: _named(value, f"{field}.{key}", found) for key, value in inputs.items()}}
        nodes[node_id] = node
    return given.model_copy(update={**changed, "workflow_json": nodes}) if found else given


def _named(value: Any, field: str, found: dict[str, str]) -> Any:
    if isinstance(value, str) and value.startswith(PREFIX):
        found.setdefault(value.removeprefix(PREFIX), field[:300])
    elif isinstance(value, Mapping) and value.get("__type") == TYPE:
        asset_id = str(object_at(value, "info").get("id") or "")
        found.setdefault(asset_id, field[:300])
        return f"{PREFIX}{asset_id}"
    return value
