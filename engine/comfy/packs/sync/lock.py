"""`packs.lock.toml`: exact commits and trees of packs, and the Python packages they need, with hashes."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from darkroom.engine.comfy.packs.sync.errors import PacksInvalid

LOCK = "packs.lock.toml"
HEADER = "# Written by `darkroom nodes sync`: what was installed for packs.toml.\n"


@dataclass(frozen=True, slots=True)
class LockedPack:
    """A pack as installed. `asked` is its source and revision in the manifest, `commit` what that was.

    `sha256` is of its tree as fetched, `installed_sha256` of the tree that its `install.py` left, in a snapshot's lock.
    """

    asked: str
    commit: str
    sha256: str
    installed_sha256: str = ""


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """A Python package. `sha256` is of the file at `url`; empty for one that is built from a repository.

    `installed_by` is the pack whose `install.py` brought it; its hash is unknown then.
    """

    name: str
    version: str
    url: str = ""
    sha256: str = ""
    installed_by: str = ""

    @property
    def requirement(self) -> str:
        """The line of a requirements file that installs exactly this."""
        if self.sha256:
            return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"
        return self.without_hash

    @property
    def without_hash(self) -> str:
        """The line of a requirements file that names the version, or the repository it is built from."""
        is_built = self.url and not self.sha256
        return f"{self.name} @ {self.url}" if is_built else f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True)
class PacksLock:
    """Packs by name, and packages. `environment` is a hash of all that the choice of packages followed from."""

    packs: Mapping[str, LockedPack] = field(default_factory=dict)
    packages: tuple[LockedPackage, ...] = ()
    environment: str = ""


def lock_path(base_directory: Path) -> Path:
    return base_directory / LOCK


def read_lock(path: Path) -> PacksLock:
    """Return the lock; an empty one without a file. Raises PacksInvalid."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return PacksLock()
    except OSError as error:
        raise PacksInvalid(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PacksInvalid(f"{path}: is not TOML: {error}") from None
    try:
        packs = {
            name: LockedPack(
                str(table["asked"]), str(table["commit"]), str(table["sha256"]), str(table.get("installed_sha256", ""))
            )
            for name, table in data.get("packs", {}).items()
        }
        packages = tuple(
            LockedPackage(
                name,
                str(table["version"]),
                str(table.get("url", "")),
                str(table.get("sha256", "")),
                str(table.get("installed_by", "")),
            )  # fmt: skip
            for name, table in data.get("packages", {}).items()
        )
        return PacksLock(packs, packages, str(data.get("environment", "")))
    except (KeyError, TypeError, AttributeError):
        raise PacksInvalid(f"{path}: lacks a field; remove the file to have it written anew") from None


def write_lock(path: Path, lock: PacksLock) -> None:
    """Write the lock and rename it into place."""
    lines = [HEADER, f"environment = {json.dumps(lock.environment)}\n"]
    for name, pack in sorted(lock.packs.items()):
        values = {"asked": pack.asked, "commit": pack.commit, "sha256": pack.sha256}
        values["installed_sha256"] = pack.installed_sha256
        lines.append(_table(f"packs.{json.dumps(name)}", values))
    for package in sorted(lock.packages, key=lambda item: item.name):
        values = {"version": package.version, "url": package.url, "sha256": package.sha256}
        values["installed_by"] = package.installed_by
        lines.append(_table(f"packages.{json.dumps(package.name)}", values))
    partial = path.with_name(f".{path.name}.new")
    partial.write_text("".join(lines), "utf-8")
    os.replace(partial, path)


def _table(name: str, values: Mapping[str, str]) -> str:
    rows = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items() if value)
    return f"\n[{name}]\n{rows}"
