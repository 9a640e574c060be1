"""FallbackTarget: what FALLBACK_ENGINE names: a folder with ComfyUI, a command that starts one, or a URL."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.loopback import is_loopback

SCRIPT = "main.py"
VENVS = (".venv", "venv", "env", "../.venv", "../venv")
"""Folders in or beside that of ComfyUI where its installers leave its Python."""

EXPECTED = "a folder with ComfyUI's main.py, a command that starts it, or an http(s) URL"
OWN_FLAGS = frozenset({"--port", "--listen", "--tls-keyfile", "--tls-certfile"})
"""Flags of ComfyUI that the worker sets itself, or that would keep it from connecting."""

NO_PARTNERS = "--disable-api-nodes"


@dataclass(frozen=True, slots=True)
class FallbackTarget:
    """A ComfyUI: the `url` of one that runs, or the `program` that starts one in `directory`, with `flags`.

    `script` is the Python file that the program's interpreter runs; None: the program is started as it is.
    """

    url: str = ""
    program: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    script: Path | None = None
    directory: Path | None = None

    @property
    def is_started_here(self) -> bool:
        """True if the worker starts its process."""
        return not self.url

    @property
    def is_on_this_machine(self) -> bool:
        """True if it computes on this machine's devices, as far as its address shows."""
        host = urlsplit(self.url).hostname
        return not self.url or host == "localhost" or is_loopback(host)


def read_target(engine: str) -> FallbackTarget:
    """Return the target that FALLBACK_ENGINE names. Reads the file system. Raises SettingsInvalid for anything else."""
    if engine.startswith(("http://", "https://")):
        return FallbackTarget(url=engine.rstrip("/"))
    try:
        words = [engine] if Path(engine).expanduser().is_dir() else shlex.split(engine)
    except ValueError as error:
        raise SettingsInvalid(f"FALLBACK_ENGINE: {error}; got {engine!r}, expected {EXPECTED}") from None
    taken = sorted(OWN_FLAGS & {word.partition("=")[0] for word in words})
    if taken:
        raise SettingsInvalid(f"FALLBACK_ENGINE: the worker chooses its address; got {', '.join(taken)}, expected none")
    folder = Path(words[0]).expanduser() if words else Path()
    if words and words[0] and folder.is_dir():
        return _of_folder(folder.absolute(), words[1:])
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise SettingsInvalid(f"FALLBACK_ENGINE: nothing that starts; got {engine!r}, expected {EXPECTED}")
    return _of_command(program, words[1:])


def _of_command(program: str, words: Sequence[str]) -> FallbackTarget:
    """Return the target for a program and its arguments; those behind a Python file are its flags."""
    position = next((index for index, word in enumerate(words) if word.endswith(".py")), None)
    if not Path(program).name.startswith("python") or position is None:
        return FallbackTarget(program=(program, *words), directory=Path.cwd())
    script = Path(words[position]).absolute()
    if not script.is_file():
        raise SettingsInvalid(f"FALLBACK_ENGINE: no file {words[position]!r}; expected {EXPECTED}")
    options, flags = tuple(words[:position]), tuple(words[position + 1 :])
    return FallbackTarget(program=(program, *options), flags=flags, script=script, directory=script.parent)


def _of_folder(folder: Path, flags: Sequence[str]) -> FallbackTarget:
    script = folder / SCRIPT
    if not script.is_file():
        raise SettingsInvalid(f"FALLBACK_ENGINE: no {SCRIPT} in {folder}; expected {EXPECTED}")
    for venv in VENVS:
        python = folder / venv / "bin" / "python"
        if python.exists():
            program = (str(python.parent.resolve() / "python"),)
            return FallbackTarget(program=program, flags=tuple(flags), script=script, directory=folder)
    raise SettingsInvalid(
        f"FALLBACK_ENGINE: no Python of its own in {folder}; looked for {', '.join(VENVS)}. Name it in a command: "
        f"FALLBACK_ENGINE='/path/to/python {script}'"
    )
