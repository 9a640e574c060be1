"""Wheels of installed packages, packed from their installed files: exactly this environment, without an index.

What pip wrote at the installation (scripts of entry points, compiled files, its own notes) is left out, as pip writes
it again. Files outside of the packages' folder go to the wheel's `data` and `scripts` folders.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from darkroom.worker.snapshot.errors import SnapshotFailed

LEFT_OUT = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})
NOT_PACKED = frozenset({"pip"})  # a new environment comes with it
NOT_BUILT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info", "tests", "docs", "base")
EPOCH = (1980, 1, 1, 0, 0, 0)  # so that packing twice gives the same file


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel in a snapshot."""

    name: str
    version: str
    path: Path
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


def pack_environment(folder: Path, only: Iterable[str] | None = None) -> list[Wheel]:
    """Write a wheel of each installed package into `folder`, or of those in `only`. Raises SnapshotFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = None if only is None else {plain_name(name) for name in only}
    wheels: dict[str, Wheel] = {}
    for item in metadata.distributions():
        name = plain_name(item.metadata["Name"] or "")
        if not name or name in wheels or name in NOT_PACKED or (wanted is not None and name not in wanted):
            continue
        source = _editable_source(item)
        path = _pack(item, folder) if source is None else _build(name, source, folder)
        wheels[name] = Wheel(name, item.version, path, _sha256(path))
    return [wheels[name] for name in sorted(wheels)]


def plain_name(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _editable_source(item: metadata.Distribution) -> Path | None:
    """Return the source folder of an editable installation, None for a whole one."""
    try:
        origin = json.loads(item.read_text("direct_url.json") or "{}")
    except ValueError:
        return None
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))


def _build(name: str, source: Path, folder: Path) -> Path:
    """Build a wheel from a copy of its source, since a build leaves files in it."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "source")
        shutil.copytree(source, copy, ignore=NOT_BUILT, symlinks=True)
        out = Path(place, "wheel")
        options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--wheel-dir", str(out), str(copy)]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "wheel", *options],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        built = sorted(out.glob("*.whl")) if out.is_dir() else []
        if done.returncode != 0 or not built:
            reason = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            raise SnapshotFailed(f"{name}: cannot be built from {source}: {reason[:400]}")
        return Path(shutil.copy2(built[0], folder))


def _pack(item: metadata.Distribution, folder: Path) -> Path:
    name = item.metadata["Name"]
    about = next((file.parts[0] for file in item.files or () if file.name == "METADATA" and len(file.parts) == 2), "")
    tags = _tags(item.read_text("WHEEL") or "")
    if not about.endswith(".dist-info") or not tags:
        raise SnapshotFailed(f"{name}: was not installed from a wheel; expected it installed anew with pip")
    stem = about.removesuffix(".dist-info")
    path = folder / f"{stem}-{tags}.whl"
    record: list[str] = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as wheel:
        for place, file in sorted(_wheel_files(item, about, stem)):
            try:
                record.append(_add(wheel, place, file))
            except FileNotFoundError:
                raise SnapshotFailed(f"{name}: {file} is gone; expected it installed anew with pip") from None
        record.append(f"{about}/RECORD,,")
        wheel.writestr(zipfile.ZipInfo(f"{about}/RECORD", EPOCH), "\n".join(record) + "\n")
    return path


def _wheel_files(item: metadata.Distribution, about: str, stem: str) -> Iterator[tuple[str, Path]]:
    """Yield the place in the wheel and the path of each file that belongs into it."""
    scripts = {entry.name for entry in item.entry_points if entry.group in ("console_scripts", "gui_scripts")}
    prefix = Path(sys.prefix).resolve()
    for file in item.files or ():
        path = Path(str(item.locate_file(file)))
        parts = PurePosixPath(file.as_posix()).parts
        if "__pycache__" in parts or (parts[0] == about and file.name in LEFT_OUT):
            continue
        if ".." not in parts:
            yield file.as_posix(), path
            continue
        place = path.resolve()
        if not place.is_relative_to(prefix):
            continue  # not of this environment
        inner = place.relative_to(prefix)
        if inner.parts[0] != "bin":
            yield f"{stem}.data/data/{inner.as_posix()}", path
        elif inner.name not in scripts:
            yield f"{stem}.data/scripts/{inner.name}", path


def _add(wheel: zipfile.ZipFile, place: str, file: Path) -> str:
    """Add a file and return its line of RECORD."""
    info = zipfile.ZipInfo(place, EPOCH)
    info.external_attr = (file.stat().st_mode & 0xFFFF) << 16
    digest, num_bytes = hashlib.sha256(), 0
    with file.open("rb") as source, wheel.open(info, "w", force_zip64=True) as target:
        while chunk := source.read(1024 * 1024):
            digest.update(chunk)
            num_bytes += len(chunk)
            target.write(chunk)
    shown = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
    quoted = f'"{place}"' if "," in place else place
    return f"{quoted},sha256={shown},{num_bytes}"


def _tags(about: str) -> str:
    """Return the tags of a WHEEL file as a file's name has them; empty without any.

    >>> _tags("Tag: py2-none-any\\nTag: py3-none-any")
    'py2.py3-none-any'
    """
    tags = [line.partition(":")[2].strip().split("-") for line in about.splitlines() if line.startswith("Tag:")]
    if not tags or any(len(tag) != 3 for tag in tags):
        return ""
    return "-".join(".".join(dict.fromkeys(tag[place] for tag in tags)) for place in range(3))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
