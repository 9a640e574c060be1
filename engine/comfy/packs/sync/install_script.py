"""Run of a pack's `install.py` in a child process that cannot move the engine's packages.

The child's interpreter is that of a virtual environment made for the run. It imports the engine's packages and those of
the layer, and pip adds to the environment alone: what lies outside of it pip neither replaces nor uninstalls. What the
script added is returned, to be taken into the layer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from darkroom.engine.comfy.packs.layer import package_folders
from darkroom.engine.comfy.packs.sync.errors import InstallScriptFailed
from darkroom.engine.comfy.packs.sync.lock import LockedPackage
from darkroom.engine.comfy.packs.sync.packages import Installer, plain_name, site_packages, version_control_url

INSTALL_SCRIPT = "install.py"
LOGS = "pack_install_logs"
INSTALL_SECONDS = 900.0
BENEATH = "beneath.pth"
CONSTRAINTS = "constraints.txt"
NOT_TAKEN = shutil.ignore_patterns("__pycache__", BENEATH)
START = f'PATH="$0/bin:$PATH" exec "$0/bin/python" {INSTALL_SCRIPT}'
TAIL_LINES = 3


@dataclass(frozen=True, slots=True)
class InstallRun:
    """Conditions of the runs of one sync."""

    base_directory: Path
    installer: Installer
    seconds: float = INSTALL_SECONDS

    def run(
        self, pack: str, folder: Path, layer: Path, packages: Sequence[LockedPackage], scratch: Path
    ) -> tuple[LockedPackage, ...]:
        """Run the `install.py` of `folder` and take the packages that it installed into `layer`. Return them.

        `packages` are those of the layer; they do not move either. `scratch` does not exist yet.
        The output goes to `pack_install_logs/NAME.log` of the base directory.
        Raises InstallScriptFailed for another exit code than 0, for a run over the time limit, and for a script that
        installed another version of a package that is kept.
        """
        log = self.base_directory / LOGS / f"{pack}.log"
        log.parent.mkdir(exist_ok=True)
        kept = [*self.installer.constraints, *(f"{item.name}=={item.version}" for item in packages)]
        added_to = _environment(scratch, layer, kept)
        with log.open("wb") as output:
            child = subprocess.Popen(
                self._command(scratch), cwd=folder,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
            with _ended(child):
                try:
                    code = child.wait(self.seconds)
                except subprocess.TimeoutExpired:
                    raise InstallScriptFailed(
                        f"{pack}: {INSTALL_SCRIPT} takes longer than {self.seconds:g} s "
                        f"(--install-seconds); its output is in {log}"
                    ) from None
        if code != 0:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise InstallScriptFailed(f"{pack}: {INSTALL_SCRIPT} failed with {how}: {_tail(log)}; see {log}")
        added = added_packages(added_to)
        _refuse_moved(pack, added, kept)
        if added:
            shutil.copytree(added_to, site_packages(layer), ignore=NOT_TAKEN, dirs_exist_ok=True)
        return added

    def _command(self, scratch: Path) -> list[str]:
        """Return the command that runs the script with the environment's programs first."""
        constraints = str(scratch / CONSTRAINTS)
        variables = {
            "VIRTUAL_ENV": str(scratch),
            "PIP_CONSTRAINT": constraints,
            "UV_CONSTRAINT": constraints,
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "COMFYUI_PATH": str(self.base_directory.absolute()),
            "COMFYUI_FOLDERS_BASE_PATH": str(self.base_directory.absolute()),
        }
        if self.installer.wheels is not None:
            wheels = str(self.installer.wheels.absolute())
            variables |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": wheels}
            variables |= {"UV_NO_INDEX": "1", "UV_FIND_LINKS": wheels}
        settings = [f"{name}={value}" for name, value in variables.items()]
        return ["env", "-u", "PYTHONPATH", "-u", "PYTHONHOME", *settings, "sh", "-c", START, str(scratch)]


def _environment(scratch: Path, layer: Path, kept: Sequence[str]) -> Path:
    """Make a virtual environment that sees the engine's packages and the layer's. Return its folder of packages."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(scratch)
    packages = site_packages(scratch)
    seen = [entry for entry in sys.path if entry.endswith("-packages")]
    (packages / BENEATH).write_text("".join(f"{entry}\n" for entry in [*seen, *package_folders(layer)]), "utf-8")
    # Scripts also start pip by its name, which must not be that of another environment.
    for name in ("pip", "pip3"):
        command = scratch / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{scratch / "bin" / "python"}" -m pip "$@"\n', "utf-8")
        command.chmod(0o755)
    (scratch / CONSTRAINTS).write_text("".join(f"{line}\n" for line in kept), "utf-8")
    return packages


def _refuse_moved(pack: str, added: Sequence[LockedPackage], kept: Sequence[str]) -> None:
    versions = dict(line.split("==", 1) for line in kept)
    moved = [item for item in added if item.name in versions]
    if moved:
        got = ", ".join(f"{item.name} {item.version}" for item in moved)
        expected = ", ".join(f"{item.name} {versions[item.name]}" for item in moved)
        raise InstallScriptFailed(f"{pack}: {INSTALL_SCRIPT} would move {got}; expected {expected} kept as it is")


def added_packages(folder: Path) -> tuple[LockedPackage, ...]:
    """Return the Python packages in a folder. Their hashes are unknown, as pip keeps none."""
    found = []
    for item in metadata.distributions(path=[str(folder)]):
        origin = json.loads(item.read_text("direct_url.json") or "{}")
        url = version_control_url(origin)
        found.append(LockedPackage(plain_name(item.metadata["Name"]), item.version, url))
    return tuple(sorted(found, key=lambda package: package.name))


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill what is left of the child's process group at the end."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _tail(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-TAIL_LINES:])[:600] or "without a word"
