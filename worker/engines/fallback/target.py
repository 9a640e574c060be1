"""FallbackTarget: what FALLBACK_ENGINE names: a folder with ComfyUI, a command that starts one, or a URL."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from darkroom.worker.errors import SettingsInvalid

SCRIPT = "main.py"
VENVS = (".venv", "venv", "env", "../.venv", "../venv")
"""Folders beside or in that of ComfyUI where its installers leave its Python."""

EXPECTED = "a folder with ComfyUI's main.py, a command that starts it, or an http(s) URL"


@dataclass(frozen=True, slots=True)
class FallbackTarget:
    """A ComfyUI: the `url` of one that runs, or the `program` that starts one in `directory`.

    `script` is the Python file that the program's interpreter runs; None: the program is started as it is.
    """

    url: str = ""
    program: tuple[str, ...] = ()
    script: Path | None = None
    directory: Path | None = None

    @property
    def is_started_here(self) -> bool:
        return not self.url


def read_target(engine: str) -> FallbackTarget:
    """Return what FALLBACK_ENGINE names. Reads the file system. Raises SettingsInvalid for anything else."""
    if engine.startswith(("http://", "https://")):
        return FallbackTarget(url=engine.rstrip("/"))
    folder = Path(engine).expanduser()
    if folder.is_dir():
        return _of_folder(folder.absolute())
    words = shlex.split(engine)
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise SettingsInvalid(f"FALLBACK_ENGINE: nothing that starts; got {engine!r}, expected {EXPECTED}")
    if len(words) > 1 and Path(program).name.startswith("python") and words[1].endswith(".py"):
        script = Path(words[1]).absolute()
        if not script.is_file():
            raise SettingsInvalid(f"FALLBACK_ENGINE: no file {words[1]!r}; expected {EXPECTED}")
        return FallbackTarget(program=(program, *words[2:]), script=script, directory=script.parent)
    return FallbackTarget(program=(program, *words[1:]), directory=Path.cwd())


def _of_folder(folder: Path) -> FallbackTarget:
    script = folder / SCRIPT
    if not script.is_file():
        raise SettingsInvalid(f"FALLBACK_ENGINE: no {SCRIPT} in {folder}; expected {EXPECTED}")
    for venv in VENVS:
        python = folder / venv / "bin" / "python"
        if python.exists():
            return FallbackTarget(program=(str(python.parent.resolve() / "python"),), script=script, directory=folder)
    raise SettingsInvalid(
        f"FALLBACK_ENGINE: no Python of its own in {folder}; looked for {', '.join(VENVS)}. Name it in a command: "
        f"FALLBACK_ENGINE='/path/to/python {script}'"
    )
