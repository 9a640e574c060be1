"""Manifests of other tools, read as tables of `models.toml` and `packs.toml`. Pure.

| Tool | File | Known by |
| --- | --- | --- |
| comfy-cli | `comfy-build.yaml` | `definition` |
| comfy-cli, ComfyUI-Manager | `comfy-lock.yaml` | `custom_nodes` is a mapping, or a model has `paths` |
| comfy-pack | `snapshot.json`, in a `.cpack.zip` | a model has `filename` |
| SaladCloud's comfyui-api | `manifest.yml` or JSON | `models` is a mapping, or `custom_nodes` a list of texts |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from darkroom.worker.json.values import JsonObject
from darkroom.worker.models.entry import FILE_EXTENSIONS

Table = dict[str, Any]
FOREIGN_SUFFIXES = frozenset({".yaml", ".yml", ".json", ".zip"})
_REFERENCE = re.compile(r"(?P<url>.+?)(?:/-)?/(?:tree|commit|releases/tag|src/branch|src/commit)/(?P<revision>.+)")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(slots=True)
class ForeignManifest:
    """Tables by name, and what was left out, each with the reason."""

    models: dict[str, Table] = field(default_factory=dict)
    packs: dict[str, Table] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add_model(self, path: str, url: str, sha256: str = "", *, kind: str = "") -> None:
        """Add a model; `path` is below a `models` folder, or below the folder `kind`."""
        parts = [part for part in PurePosixPath(path.replace("\\", "/")).parts if part not in ("/", ".")]
        if "models" in parts[:-1]:
            parts = parts[len(parts) - parts[::-1].index("models") :]
        elif kind:
            parts = [*kind.strip("/").split("/"), parts[-1]] if parts else []
        if len(parts) < 2:
            self.left_out.append(f"model {path or url}: its folder below models/ is not told")
        elif not url:
            self.left_out.append(f"model {path}: no download address is told")
        else:
            table: Table = {"kind": parts[0], "name": "/".join(parts[1:]), "sources": [url]}
            if _SHA256.fullmatch(sha256):
                table["sha256"] = sha256.lower()
            self.models[_unused(self.models, PurePosixPath(parts[-1]).stem)] = table

    def add_pack(self, name: str, **table: str) -> None:
        """Add a pack with the fields that are not empty."""
        self.packs[_unused(self.packs, name)] = {key: value for key, value in table.items() if value}

    def add_repository(self, url: str, revision: str = "", name: str = "") -> None:
        plain = url.rstrip("/").removesuffix(".git")
        self.add_pack(name or plain.rpartition("/")[2], url=url.rstrip("/"), revision=revision)


def read_foreign(data: object) -> ForeignManifest | None:
    """Return the tables of another tool's manifest; None for what is of none of them."""
    if not isinstance(data, Mapping):
        return None
    found = ForeignManifest()
    models, packs = data.get("models"), data.get("custom_nodes")
    if isinstance(data.get("definition"), Mapping):
        _read_build(data["definition"], found)
    elif isinstance(models, list) and any("filename" in item for item in _tables(models)):
        _read_comfy_pack(data, found)
    elif isinstance(packs, Mapping) or any("paths" in item or "model" in item for item in _tables(models)):
        _read_lock(data, found)
    elif isinstance(models, Mapping) or (isinstance(packs, list) and any(isinstance(item, str) for item in packs)):
        _read_salad(data, found)
    elif isinstance(packs, list):
        _read_comfy_pack(data, found)
    else:
        return None
    return found


def _read_build(definition: JsonObject, found: ForeignManifest) -> None:
    for model in _tables(definition.get("models")):
        url = str(model.get("sourceUri") or "")
        name = str(model.get("filename") or unquote(urlsplit(url).path.rpartition("/")[2]))
        found.add_model(name, url, str(model.get("sha256") or ""), kind=str(model.get("type") or ""))
    for pack in _tables(definition.get("customNodes")):
        name = str(pack.get("name") or pack.get("id") or "")
        if pack.get("registryVersion"):
            found.add_pack(name, registry=str(pack.get("id") or name), revision=str(pack["registryVersion"]))
        elif pack.get("repository"):
            revision = str(pack.get("commit") or pack.get("gitRef") or "")
            found.add_repository(str(pack["repository"]), revision, name)
        else:
            found.left_out.append(f"pack {name}: neither a version of the registry nor a repository is told")
    _leave_out(definition, ("pipDependencies",), found)


def _read_comfy_pack(data: JsonObject, found: ForeignManifest) -> None:
    for model in _tables(data.get("models")):
        source = model.get("source")
        url = str(source.get("download_url") or "") if isinstance(source, Mapping) else ""
        if model.get("disabled"):
            found.left_out.append(f"model {model.get('filename')}: is disabled")
        else:
            found.add_model(str(model.get("filename") or ""), url, str(model.get("sha256") or ""))
    for pack in _tables(data.get("custom_nodes")):
        if pack.get("disabled"):
            found.left_out.append(f"pack {pack.get('url')}: is disabled")
        else:
            found.add_repository(str(pack.get("url") or ""), str(pack.get("commit_hash") or ""))


def _read_lock(data: JsonObject, found: ForeignManifest) -> None:
    for model in _tables(data.get("models")):
        name, url = str(model.get("model") or ""), str(model.get("url") or "")
        hashes = [str(item.get("hash") or "") for item in _tables(model.get("hashes"))]
        paths = [str(item.get("path") or "") for item in _tables(model.get("paths"))] or [name]
        digest = next((item for item in hashes if _SHA256.fullmatch(item)), "")
        for path in paths:
            is_file = PurePosixPath(path).suffix.lower() in FILE_EXTENSIONS
            file_name = name if PurePosixPath(name).suffix else unquote(urlsplit(url).path.rpartition("/")[2])
            found.add_model(path if is_file else f"{path}/{file_name}", url, digest, kind=str(model.get("type") or ""))
    packs = data.get("custom_nodes")
    nodes = packs if isinstance(packs, Mapping) else {}
    git = nodes.get("git_custom_nodes")
    for url, table in (git if isinstance(git, Mapping) else {}).items():
        if isinstance(table, Mapping) and table.get("disabled"):
            found.left_out.append(f"pack {url}: is disabled")
        else:
            found.add_repository(str(url), str(table.get("hash") or "") if isinstance(table, Mapping) else "")
    registry = nodes.get("cnr_custom_nodes")
    for name, version in (registry if isinstance(registry, Mapping) else {}).items():
        found.add_pack(str(name), registry=str(name), revision=str(version or ""))
    for item in _tables(nodes.get("file_custom_nodes")):
        found.left_out.append(f"pack {item.get('filename')}: a single file, whose source is not told")
    _leave_out(data, ("pips",), found)


def _read_salad(data: JsonObject, found: ForeignManifest) -> None:
    models = data.get("models")
    groups = models if isinstance(models, Mapping) else {}
    for model in (item for group in ("before_start", "after_start") for item in _tables(groups.get(group))):
        found.add_model(str(model.get("local_path") or ""), str(model.get("url") or ""))
    packs = data.get("custom_nodes")
    for item in packs if isinstance(packs, list) else []:
        text = str(item)
        if "://" not in text:
            name, _, revision = text.partition("@")
            found.add_pack(name, registry=name, revision=revision)
        elif reference := _REFERENCE.fullmatch(text):
            found.add_repository(reference["url"], reference["revision"])
        else:
            head, sign, revision = text.rpartition("@")
            is_pinned = bool(sign) and "/" not in revision and "/" in head.partition("://")[2]
            found.add_repository(head if is_pinned else text, revision if is_pinned else "")
    _leave_out(data, ("apt", "pip"), found)


def _leave_out(data: JsonObject, keys: tuple[str, ...], found: ForeignManifest) -> None:
    found.left_out += [f"{key}: packages are installed for packs alone" for key in keys if data.get(key)]


def _tables(items: object) -> Iterator[JsonObject]:
    return (item for item in (items if isinstance(items, list) else []) if isinstance(item, Mapping))


def _unused(tables: Mapping[str, Table], name: str) -> str:
    """Return a name that no table has: this one, or with a number."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "item"
    number, found = 1, plain
    while found in tables:
        number += 1
        found = f"{plain}-{number}"
    return found
