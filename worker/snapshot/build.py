"""Writing of a snapshot: program, packs and, if asked for, models, in a directory that appears when it is whole."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from darkroom.start import command_of
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.file_states import file_states
from darkroom.worker.models.files import checksum_path
from darkroom.worker.models.library import ModelLibrary
from darkroom.worker.snapshot.errors import SnapshotFailed
from darkroom.worker.snapshot.wheels import pack_environment
from darkroom.worker.version import version

PACKS = "packs.toml"
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SnapshotContents:
    """Choices of a snapshot. `only` limits the program's wheels to these packages; None: all that are installed."""

    has_weights: bool = False
    only: Iterable[str] | None = None


def build_snapshot(library: ModelLibrary, folder: Path, contents: SnapshotContents, show: Show) -> None:
    """Write a snapshot of this environment and of the library's base directory. Raises SnapshotFailed."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SnapshotFailed(f"{folder}: is there already; expected an empty or a new directory")
    base = library.directory.parent
    entries = _weights(library) if contents.has_weights else ()
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        wheels = pack_environment(partial / "program", contents.only)
        (partial / "requirements.txt").write_text("".join(f"{wheel.requirement}\n" for wheel in wheels), "utf-8")
        show(f"program    {len(wheels)} packages, {_size(partial / 'program')}")
        if (base / PACKS).is_file():
            _collect_packs(base, partial)
            show(f"packs      {_size(partial / 'packs')}, their packages {_size(partial / 'wheels')}")
        _copy_manifests(library, partial)
        for entry in entries:
            _copy_file(entry, library.directory, partial / "models")
        if entries:
            show(f"models     {len(entries)} files, {_size(partial / 'models')}")
        _write_notes(partial, len(wheels), entries)
        if folder.exists():
            folder.rmdir()
        os.replace(partial, folder)
    except OSError as error:
        raise SnapshotFailed(f"{error.filename or folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _weights(library: ModelLibrary) -> tuple[ModelEntry, ...]:
    """Return the files that the manifest asks for. Raises SnapshotFailed naming each that is not there."""
    entries = library.manifest.required()
    if not entries:
        raise SnapshotFailed("--weights: no manifest asks for a file; expected models.toml")
    states = file_states(entries, library.directory)
    wrong = [f"{place}: {state}" for place, state in states.items() if state != "good"]
    if wrong:
        raise SnapshotFailed(
            "\n".join([*wrong, "expected all files of the manifest; `darkroom models fetch` brings them"])
        )
    return entries


def _collect_packs(base: Path, partial: Path) -> None:
    command = [*command_of("darkroom.engine"), "nodes", "collect", str(partial), "--base-directory", str(base)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SnapshotFailed(done.stderr.strip() or f"the packs cannot be collected: exit code {done.returncode}")


def _copy_manifests(library: ModelLibrary, partial: Path) -> None:
    manifest = library.manifest_path
    if manifest is not None:
        shutil.copyfile(manifest, partial / "models.toml")
    if library.lock_path.is_file():
        shutil.copyfile(library.lock_path, partial / "models.lock.toml")


def _copy_file(entry: ModelEntry, models: Path, target: Path) -> None:
    """Copy a model file with its checksum; on the same disk it is linked, which takes no room."""
    source, copy = entry.path_below(models), entry.path_below(target)
    copy.parent.mkdir(parents=True, exist_ok=True)
    for one, other in ((source, copy), (checksum_path(source), checksum_path(copy))):
        if one.is_file():
            try:
                os.link(one.resolve(), other)
            except OSError:
                shutil.copyfile(one, other)


def _write_notes(partial: Path, num_packages: int, entries: Iterable[ModelEntry]) -> None:
    own = files("darkroom.worker.snapshot")
    (partial / "install.sh").write_text((own / "install.sh").read_text("utf-8"), "utf-8")
    (partial / "Dockerfile").write_text((own / "Dockerfile.txt").read_text("utf-8"), "utf-8")
    kind = f"{sys.version_info[0]}.{sys.version_info[1]} {sys.platform} {platform.machine()}"
    (partial / "python.txt").write_text(f"{kind}\n", "utf-8")
    about = {
        "darkroom": version(),
        "python": kind,
        "packages": num_packages,
        "models": [item.place for item in entries],
    }
    (partial / "snapshot.json").write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def _size(folder: Path) -> str:
    num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0
    return f"{num_bytes / 1e6:.1f} MB"
