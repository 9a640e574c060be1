"""Command that starts the fallback: its program, ComfyUI's flags for the worker's folders, its environment. Pure."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.command import LOOPBACK, EngineCommand
from darkroom.worker.engines.fallback.sandbox import USER_FOLDER
from darkroom.worker.engines.fallback.target import NO_PARTNERS, FallbackTarget
from darkroom.worker.engines.sandbox import Sandbox

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
NAME = "fallback"


@dataclass(frozen=True, slots=True)
class FallbackLaunch:
    """Configuration of the fallback: what it is, its flags, and the folders that it shares with our engine.

    `private_directory` is the front's own; the fallback's list of nodes and its socket lie there. `gpu` is the value
    of `CUDA_VISIBLE_DEVICES` for it; None: every device. `sandbox` is its own, with `limits` for its processes.
    """

    target: FallbackTarget
    folders: LocalFolders
    private_directory: Path
    environment: Mapping[str, str]
    idle_seconds: float
    gpu: str | None = None
    is_cpu: bool = False
    has_metadata: bool = True
    takes_failures: bool = False
    sandbox: Sandbox | None = None
    limits: tuple[str, ...] = ()

    @property
    def temp_directory(self) -> Path:
        """Folder for its temporary files, below which ComfyUI makes `temp`."""
        return self.folders.temp.parent

    @property
    def paths_file(self) -> Path:
        """File with the folders of models."""
        return self.temp_directory / "model_paths.yaml"

    @property
    def nodes_file(self) -> Path | None:
        """File with the node classes that the fallback listed last; None for one that is not started here."""
        return self.private_directory / "fallback_nodes.json" if self.target.is_started_here else None

    @property
    def may_send(self) -> bool:
        """True if its nodes may send data to partners' services."""
        is_offline = self.sandbox is not None and self.sandbox.has_namespaces
        return not is_offline and NO_PARTNERS not in self.target.flags


def fallback_command(launch: FallbackLaunch) -> EngineCommand:
    """Return the command for a fallback that is started here."""
    target = launch.target
    if target.script is None:
        program: Sequence[str] = (sys.executable, str(BOOTSTRAP), "--", *target.program)
    else:
        program = (*target.program, str(BOOTSTRAP), str(target.script))
    return EngineCommand(
        program=program,
        arguments=(*fallback_flags(launch), *target.flags),
        environment={**launch.environment, **({} if launch.gpu is None else {"CUDA_VISIBLE_DEVICES": launch.gpu})},
        directory=target.directory or launch.private_directory,
        listen="" if launch.sandbox is not None and launch.sandbox.has_namespaces else LOOPBACK,
        name=NAME,
        socket_directory=launch.private_directory,
        folders=launch.folders,
        sandbox=launch.sandbox,
    )


def fallback_flags(launch: FallbackLaunch) -> list[str]:
    """Return ComfyUI's flags for the worker's folders. The temporary folder is the fallback's own, which it empties."""
    folders = launch.folders
    user = [] if launch.sandbox is None else ["--user-directory", str(launch.temp_directory / USER_FOLDER)]
    flags = [
        *launch.limits,
        *user,
        *("--extra-model-paths-config", str(launch.paths_file)),
        *("--input-directory", str(folders.input), "--output-directory", str(folders.output)),
        *("--temp-directory", str(launch.temp_directory)),  # ComfyUI adds `temp`
        "--disable-auto-launch",
    ]
    flags += [] if launch.has_metadata else ["--disable-metadata"]
    return [*flags, "--cpu"] if launch.is_cpu and "--cpu" not in launch.target.flags else flags
