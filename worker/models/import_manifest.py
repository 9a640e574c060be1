"""Reading of other tools' manifests from files, and writing them as `models.toml` and `packs.toml`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from darkroom.contract.missing_file import unreadable_file
from darkroom.worker.models.errors import ManifestInvalid
from darkroom.worker.models.foreign import ForeignManifest, Table, read_foreign

PACKED = "snapshot.json"  # in comfy-pack's archives
MAX_BYTES = 16 * 1024 * 1024


def read_foreign_file(path: Path) -> ForeignManifest:
    """Return another tool's manifest. Raises ManifestInvalid for a file of no known kind."""
    try:
        data = yaml.safe_load(_text(path)) if path.suffix in (".yaml", ".yml") else json.loads(_text(path))
    except OSError as error:
        raise ManifestInvalid(f"{path}: {unreadable_file(path, error)}") from None
    except (yaml.YAMLError, ValueError, KeyError, RecursionError, zipfile.BadZipFile) as error:
        raise ManifestInvalid(f"{path}: does not parse: {str(error).splitlines()[0][:200]}") from None
    found = read_foreign(data)
    if found is None:
        raise ManifestInvalid(
            f"{path}: is of no known kind; expected comfy-build.yaml, comfy-lock.yaml, comfy-pack's snapshot.json or "
            ".cpack.zip, or a manifest of comfyui-api"
        )
    return found


def _text(path: Path) -> str:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as packed, packed.open(PACKED) as file:
            content = file.read(MAX_BYTES + 1)
    else:
        with path.open("rb") as plain:
            content = plain.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"is over {MAX_BYTES} bytes")
    return content.decode("utf-8")


def write_tables(path: Path, tables: Mapping[str, Table]) -> None:
    """Write tables as a new TOML file. Raises ManifestInvalid where there is one already."""
    try:
        with path.open("x", encoding="utf-8") as file:
            for name, table in tables.items():
                file.write(f"[{json.dumps(name)}]\n")
                file.writelines(f"{key} = {_value(value)}\n" for key, value in table.items())
                file.write("\n")
    except FileExistsError:
        raise ManifestInvalid(f"{path}: is there already; expected it moved away or removed") from None
    except OSError as error:
        raise ManifestInvalid(f"{path}: cannot be written: {error.strerror or error}") from None


def _value(value: object) -> str:
    """Return a text or a list of texts as TOML, whose strings are JSON's."""
    return json.dumps(value, ensure_ascii=True)
