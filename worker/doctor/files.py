"""Checks of models, packs of custom nodes and the state directory."""

from __future__ import annotations

import re
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Final

from darkroom.worker.doctor.check import Check, failed, good, skipped, warning
from darkroom.worker.models.files import list_models

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"}
)
PARTIAL: Final = ("*.partial", "*.part", "*.incomplete", "*.crdownload")
REQUIREMENT: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)")
MAX_SHOWN: Final = 5
MOUNTS: Final = Path("/proc/mounts")
LOCKS: Final = Path("/proc/locks")


def check_models(models: Path) -> Check:
    """Check that there are model files, and none that are empty or incomplete."""
    found = list_models(models) if models.is_dir() else []
    broken = [model.name for model in found if model.size_bytes == 0]
    broken += sorted(path.name for pattern in PARTIAL for path in models.rglob(pattern))
    size_bytes = sum(model.size_bytes for model in found)
    shown = f"{len(found)} files, {size_bytes / 1e9:.1f} GB below {models}"
    if broken:
        return failed("models", f"{shown}; incomplete: {_listed(broken)}", "Delete and fetch them again")
    if not found:
        return warning(
            "models",
            f"{shown}: the built-in demo model draws",
            "`darkroom models fetch NAME` (`darkroom models known` lists names), or put files below models/checkpoints",
        )
    return good("models", shown)


def check_packs(folder: Path) -> Check:
    """Check that the packages that packs of custom nodes ask for are installed."""
    if not folder.is_dir():
        return skipped("packs", f"No folder {folder}")
    packs = [path for path in sorted(folder.iterdir()) if _is_pack(path)]
    if not packs:
        return skipped("packs", f"No packs in {folder}")
    missing = {path.name: names for path in packs if (names := _missing_packages(path))}
    if missing:
        shown = "; ".join(f"{name} lacks {_listed(names)}" for name, names in missing.items())
        first = next(iter(missing))
        return failed("packs", shown, f"`darkroom nodes install {folder / first}`, for each pack that is named")
    return good("packs", f"{len(packs)}: {_listed([path.name for path in packs])}")


def _is_pack(path: Path) -> bool:
    if path.name.startswith((".", "__")) or path.name.endswith(".disabled"):
        return False
    return (path / "__init__.py").is_file() if path.is_dir() else path.suffix == ".py"


def _missing_packages(pack: Path) -> list[str]:
    """Return the packages of a pack's requirements.txt that are not installed at all; versions are not compared."""
    file = pack / "requirements.txt"
    if not file.is_file():
        return []
    lines = (line.strip() for line in file.read_text(encoding="utf-8", errors="replace").splitlines())
    names = (found[1] for line in lines if "://" not in line and (found := REQUIREMENT.match(line)) and ";" not in line)
    return [name for name in names if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_state(state: Path, *, is_within_worker: bool, mounts: Path = MOUNTS) -> Check:
    """Check that the state directory can be written, is on a local disk, and is no other worker's."""
    if not state.is_dir():
        return good("state", f"{state} is created at the first start")
    try:
        with tempfile.TemporaryFile(dir=state) as file:
            file.write(b"x")
    except OSError as error:
        remedy = "Give the worker's user the folder (`chown -R 10001:10001` for the image), or set STATE_DIRECTORY"
        return failed("state", f"{state} cannot be written: {error.strerror}", remedy)
    kind = _file_system_of(state, mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        remedy = "Set STATE_DIRECTORY to a folder of a local disk: SQLite and locks are not safe on a network"
        return warning("state", f"{state} is on {kind}", remedy)
    if is_within_worker or not _is_locked(state / "lock"):
        return good("state", f"{state} on {kind or 'an unknown file system'}")
    return good("state", f"{state} is held by a worker: {_holder(state)}")


def _file_system_of(folder: Path, mounts: Path) -> str | None:
    """Return the type of the file system that a folder is on, from the kernel's list of mounts."""
    best: tuple[int, str] | None = None
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, point, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(point) and (best is None or len(point) >= best[0]):
            best = len(point), kind
    return None if best is None else best[1]


def _is_locked(path: Path, locks: Path = LOCKS) -> bool:
    """Return True if a process holds the lock of a file, by the kernel's list: to try it might hinder a start."""
    try:
        inode = path.stat().st_ino
        return any(line.split()[5].rpartition(":")[2] == str(inode) for line in locks.read_text().splitlines())
    except (OSError, IndexError):
        return False


def _holder(state: Path) -> str:
    try:
        return (state / "holder").read_text(encoding="utf-8")[:200]
    except OSError:
        return "unknown"


def _listed(names: list[str]) -> str:
    rest = len(names) - MAX_SHOWN
    return ", ".join(names[:MAX_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
