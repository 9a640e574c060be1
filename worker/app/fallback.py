"""The fallback engine of a worker, built from its settings."""

from __future__ import annotations

from collections.abc import Mapping

from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.command import input_folder_of
from darkroom.worker.engines.fallback.command import FallbackLaunch
from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.engines.fallback.target import read_target
from darkroom.worker.engines.fleet import EngineFleet
from darkroom.worker.observe.memory import MachineMemory
from darkroom.worker.settings.environment import child_environment
from darkroom.worker.settings.settings import Settings


def build_fallback(settings: Settings, fleet: EngineFleet, memory: MachineMemory) -> FallbackEngine | None:
    """Return the fallback of FALLBACK_ENGINE, None without one. Raises SettingsInvalid."""
    if not settings.fallback.engine:
        return None
    processes = {engine.client: engine.process for engine in fleet.engines}

    def bytes_of(client: EngineClient) -> int | None:
        process = processes.get(client)
        return None if process is None or process.pid is None else memory.process_bytes(process.pid)

    async def find_folders() -> Mapping[str, list[str]]:
        return await fleet.pool.any_client.calls.model_folders()

    return FallbackEngine(fallback_launch(settings, fleet), settings.supervision, find_folders, bytes_of, memory)


def fallback_launch(settings: Settings, fleet: EngineFleet) -> FallbackLaunch:
    """Return how the fallback is started: in the folders of our engine, with temporary files of its own."""
    launch = settings.engine_launch()
    shared = next((engine.client.folders for engine in fleet.engines if engine.client.folders is not None), None)
    base = launch.base_directory
    output = base / "output" if shared is None else shared.output
    return FallbackLaunch(
        target=read_target(settings.fallback.engine),
        arguments=settings.fallback.arguments,
        folders=LocalFolders(input_folder_of(launch), output, base / "temp" / "fallback" / "temp"),
        private_directory=(settings.folders.state_path / "engine").absolute(),
        environment=child_environment(launch.environment_names),
        idle_seconds=settings.fallback.idle_seconds,
        is_cpu=launch.is_cpu or "--cpu" in launch.arguments,
        has_metadata=launch.metadata != "none",
        takes_failures=settings.fallback.takes_failures,
    )
