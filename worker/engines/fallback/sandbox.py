"""Sandbox of the fallback: that of our engine, which reads ComfyUI and its Python as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from darkroom.worker.engines.fallback.target import FallbackTarget
from darkroom.worker.engines.sandbox import Sandbox
from darkroom.worker.errors import SettingsInvalid

USER_FOLDER = "user"
"""Folder for its settings within that for its temporary files; ComfyUI starts only where it is there."""


def fallback_sandbox(own: Sandbox, target: FallbackTarget, output: Path, temp: Path) -> Sandbox:
    """Return the sandbox of a fallback beside an engine whose sandbox is `own`. Reads the file system.

    Raises SettingsInvalid for a command of which it is not known what it reads.
    """
    if target.script is None or target.directory is None:
        expected = "a folder, a Python with its main.py, or a URL"
        raise SettingsInvalid(f"FALLBACK_ENGINE: cannot be sandboxed; got a command, expected {expected}")
    named = [Path(flag) for flag in target.flags if flag.startswith("/")]  # such as --base-directory
    readable = (*own.places.readable, target.directory, *python_folders(target.program[0]), *named)
    writable = (output, temp, temp / USER_FOLDER)
    places = replace(own.places, home=temp / "home", readable=readable, writable=writable)
    return replace(own, places=places)


def python_folders(program: str) -> Sequence[Path]:
    """Return the folders of a Python: its environment, and the installation that it was made of."""
    python = Path(program)
    folders = dict.fromkeys((python.absolute().parent.parent, python.resolve().parent.parent))
    return [folder for folder in folders if not folder.is_relative_to("/usr")]
