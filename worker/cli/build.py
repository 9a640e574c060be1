"""Command `darkroom build DIR`: a snapshot from which a machine or an image starts without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.models.library import build_library
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.snapshot.build import SnapshotContents, build_snapshot
from darkroom.worker.snapshot.errors import SnapshotFailed


def run(folder: Path, base_directory: Path | None, manifest: Path | None, *, has_weights: bool) -> int:
    """Write the snapshot. Return the exit code: 1 if it cannot be written, 2 for wrong settings or manifests."""
    given: dict[str, Any] = {"base_directory": base_directory, "models_manifest": manifest}
    try:
        settings = load_settings(**{name: value for name, value in given.items() if value is not None}).settings
        library = build_library(settings)
        build_snapshot(library, folder.absolute(), SnapshotContents(has_weights), typer.echo)
    except SettingsInvalid as error:
        typer.echo(error.message, err=True)
        return 2
    except SnapshotFailed as error:
        typer.echo(f"{error}\nnothing was written", err=True)
        return 1
    typer.echo(f"{folder}: `sh {folder}/install.sh TARGET` installs it without a network", err=True)
    return 0
