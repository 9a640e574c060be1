"""The fallback engine of a worker, built from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.command import input_folder_of, limit_flags
from darkroom.worker.engines.fallback.command import FallbackLaunch
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fallback.sandbox import fallback_sandbox
from darkroom.worker.engines.fallback.target import read_target
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.engines.watch import WatchedEngine
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.engines import SandboxConfig
from darkroom.worker.settings.environment import child_environment
from darkroom.worker.settings.loopback import is_loopback
from darkroom.worker.settings.settings import Settings


def build_fallback(settings: Settings, fleet: EngineFleet, memory: MachineMemory) -> FallbackEngine | None:
    """Return the fallback of FALLBACK_ENGINE, None without one. Raises SettingsInvalid."""
    if not settings.fallback.engine:
        return None
    launch = fallback_launch(settings, fleet)

    async def find_folders() -> Mapping[str, list[str]]:
        return await (await fleet.pool.any_up()).calls.model_folders()

    neighbour = _on_this_machine(fleet) if launch.target.is_on_this_machine else None
    fallback = FallbackEngine(launch, settings.supervision, find_folders, memory, neighbour)
    fleet.count_beside(lambda: fallback.watched, fallback.stop_if_idle)
    return fallback


def fallback_launch(settings: Settings, fleet: EngineFleet) -> FallbackLaunch:
    """Return the start of the fallback: in the folders of our engine, with temporary files of its own.

    It uses the device of the first engine.
    """
    launch = settings.engine_launch()
    first = fleet.engines[0]
    target = read_target(settings.fallback.engine)
    base = launch.base_directory
    output = base / "output" if first.client.folders is None else first.client.folders.output
    temp = base / "temp" / "fallback"
    own = None if first.process is None or not target.is_started_here else first.process.sandbox
    return FallbackLaunch(
        target=target,
        folders=LocalFolders(input_folder_of(launch), output, temp / "temp"),
        private_directory=(settings.folders.state_path / "engine").absolute(),
        environment=child_environment(launch.environment_names),
        idle_seconds=settings.fallback.idle_seconds,
        gpu=None if first.process is None else first.process.gpu,
        is_cpu=launch.is_cpu or "--cpu" in launch.arguments,
        has_metadata=launch.metadata != "none",
        takes_failures=settings.fallback.takes_failures,
        sandbox=None if own is None else fallback_sandbox(own, target, output, temp),
        limits=() if own is None else _limits(launch.sandbox, len(fleet.engines)),
    )


def _limits(config: SandboxConfig, num_engines: int) -> tuple[str, ...]:
    """Return the flags for the limits of a sandboxed fallback, whose user has the processes of the engines, too."""
    processes = (config.max_processes or 0) * (num_engines + 1)
    return tuple(limit_flags(config.model_copy(update={"max_processes": processes})))


def _on_this_machine(fleet: EngineFleet) -> WatchedEngine | None:
    """Return the first engine; None where it computes on another machine."""
    first = fleet.engines[0]
    host = urlsplit(first.client.address.http_url).hostname
    return first if first.process is not None or host == "localhost" or is_loopback(host) else None
