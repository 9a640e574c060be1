"""Record of packs from earlier starts: the contents that were imported successfully, and those that killed an engine.

It is one JSON file, written whole and renamed into place. Engines that share it may overwrite each other's last
entries, which costs one unnecessary trial.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import platform
import tempfile
from pathlib import Path
from typing import Any

from darkroom.host.distribution import installed_version

CODE_ENDINGS = (".py", ".so", ".pyd")
SKIPPED_FOLDERS = frozenset({".git", "__pycache__", "node_modules"})
MAX_DEATHS = 2

log = logging.getLogger(__name__)


def fingerprint(path: Path) -> str:
    """Return a hash of a pack's code, this engine's version and Python's."""
    digest = hashlib.sha256(f"{_engine_version()} {platform.python_version()}".encode())
    for file in _code_files(path):
        digest.update(str(file.relative_to(path.parent)).encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _engine_version() -> str:
    """Return the version of the installation; a checkout that is not installed has none."""
    return installed_version() or ""


def _code_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found: list[Path] = []
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        found.extend(Path(folder, name) for name in sorted(names) if name.endswith(CODE_ENDINGS))
    return found


class PackMemory:
    """Record that is read when it is created and written at every change.

    If it cannot be written, packs are tried at every start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        with contextlib.suppress(OSError, ValueError):
            data = json.loads(path.read_text("utf-8"))
            self._known = {name: dict(entry) for name, entry in data.items()}

    def is_good(self, pack: Path, content: str) -> bool:
        """Return True if this content was imported successfully before and no engine died of it."""
        entry = self._known.get(str(pack), {})
        return entry.get("good") == content and entry.get("importing") != content

    def killed(self, pack: Path, content: str) -> bool:
        """Return True if engines died importing this content after a successful trial."""
        entry = self._known.get(str(pack), {})
        deaths = int(entry.get("deaths", 0)) + (entry.get("importing") == content)
        return entry.get("content") == content and deaths >= MAX_DEATHS

    def begin(self, pack: Path, content: str) -> None:
        """Record that the import begins. Until `end`, this content counts as the one that killed the engine."""
        entry = self._known.get(str(pack), {})
        deaths = int(entry.get("deaths", 0)) + 1 if entry.get("importing") == content else 0
        self._put(pack, {"content": content, "importing": content, "deaths": deaths})

    def end(self, pack: Path, content: str, *, is_good: bool) -> None:
        self._put(pack, {"content": content, **({"good": content} if is_good else {})})

    def _put(self, pack: Path, entry: dict[str, object]) -> None:
        self._known[str(pack)] = entry
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            with os.fdopen(handle, "w") as file:
                json.dump(self._known, file, indent=1)
            os.replace(temporary, self._path)
        except OSError as error:
            log.debug("cannot remember what is known of custom nodes: %s", error)
