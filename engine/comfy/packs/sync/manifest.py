"""`packs.toml`: packs of custom nodes that a base directory is to have.

[ComfyUI-KJNodes]                     # the folder below custom_nodes/
url = "https://github.com/kijai/ComfyUI-KJNodes"
revision = "3f20054"                  # a commit, tag or branch
sha256 = "…"                          # of the tree, optional: the lock has it after the first sync

[comfyui-kjnodes]
registry = "comfyui-kjnodes"          # or an id in ComfyUI's registry
revision = "1.1.0"                    # its version
skip_requirements = ["opencv-python"]  # names in its requirements.txt that are not installed
run_install = true                    # run its install.py at a sync
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from darkroom.engine.comfy.packs.sync.errors import PacksInvalid

MANIFEST = "packs.toml"
MAX_PACKS = 1000
MAX_BYTES = 4 * 1024 * 1024
FIELDS = ("url", "registry", "revision", "sha256", "skip_requirements", "run_install")
ALLOWED_URLS = "https://host/owner/repository, ssh://…, git@host:owner/repository, or an absolute path"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +-]{0,127}")
_URL = re.compile(r"(https?://|ssh://|git://|file:///)[^\s@?#]+(@[^\s?#]+)?|[\w.-]+@[\w.-]+:[^\s]+|/[^\s]+")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+-]{0,199}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class PackEntry:
    """A pack and its source: `url` of a git repository, or `registry`, an id. Without `revision` the newest counts.

    `name` is its folder in `custom_nodes/`. `sha256` is of the tree. `run_install` permits its `install.py` to run.
    """

    name: str
    url: str = ""
    registry: str = ""
    revision: str = ""
    sha256: str = ""
    skip_requirements: tuple[str, ...] = ()
    run_install: bool = False

    @property
    def source(self) -> str:
        """The source as text, without a password."""
        return f"registry:{self.registry}" if self.registry else re.sub(r"//[^/@]*@", "//", self.url)

    @property
    def shown(self) -> str:
        return f"{self.source}@{self.revision}" if self.revision else self.source


def manifest_path(base_directory: Path) -> Path:
    return base_directory / MANIFEST


def read_packs(path: Path) -> tuple[PackEntry, ...]:
    """Return the packs of a manifest, in its order. Raises PacksInvalid with every problem, also for a missing file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PacksInvalid(f"{path}: is over {MAX_BYTES} bytes")
        tables = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PacksInvalid(f"{path}: no such file; expected a table for each pack, with url or registry") from None
    except OSError as error:
        raise PacksInvalid(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PacksInvalid(f"{path}: is not TOML: {error}") from None
    problems = [f"[{name}] {problem}" for name, table in tables.items() for problem in _problems(name, table)]
    if len(tables) > MAX_PACKS:
        problems = [f"too many packs; got {len(tables)}, expected at most {MAX_PACKS}"]
    by_folder: dict[str, str] = {}
    for name in tables:
        other = by_folder.setdefault(name.lower(), name)
        if other != name:
            problems.append(f"[{name}] name: differs from [{other}] in capitals alone; expected one of them")
    if problems:
        raise PacksInvalid(f"{path.name}: {'; '.join(problems[:20])}")
    return tuple(_entry(name, table) for name, table in tables.items())


def _entry(name: str, table: Mapping[str, Any]) -> PackEntry:
    skipped = tuple(_plain(item) for item in table.get("skip_requirements", ()))
    texts = {key: table[key] for key in ("url", "registry", "revision", "sha256") if key in table}
    return PackEntry(name, **texts, skip_requirements=skipped, run_install=table.get("run_install", False))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _problems(name: str, table: object) -> list[str]:
    if not isinstance(table, dict):
        return [f"is no table; got {str(table)[:80]!r}, expected {', '.join(FIELDS)}"]
    problems = [f"{key}: unknown field; expected one of {', '.join(FIELDS)}" for key in table if key not in FIELDS]
    if not _NAME.fullmatch(name) or name.endswith((".", " ", ".disabled", ".py")):
        problems.append(f"name: is not a folder below custom_nodes/; got {name[:128]!r}")
    if ("url" in table) == ("registry" in table):
        problems.append("url: expected either url (a git repository) or registry (an id in ComfyUI's registry)")
    checks = (
        ("url", _URL, ALLOWED_URLS),
        ("registry", _ID, "an id such as comfyui-kjnodes"),
        ("revision", _REVISION, "a commit, tag, branch or version"),
        ("sha256", _SHA256, "64 hexadecimal digits in lower case"),
    )
    for key, pattern, allowed in checks:
        value = table.get(key)
        if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
            shown = f"; got {str(value)[:120]!r}" if key != "url" else ""
            problems.append(f"{key}: is not valid{shown}, expected {allowed}")
    skipped = table.get("skip_requirements", [])
    if not isinstance(skipped, list) or not all(isinstance(item, str) and _ID.fullmatch(item) for item in skipped):
        problems.append("skip_requirements: is not valid, expected a list of names of Python packages")
    if not isinstance(table.get("run_install", False), bool):
        problems.append(f"run_install: is not valid; got {str(table['run_install'])[:120]!r}, expected true or false")
    return problems
