"""Readiness of the front: benchmark and warm-up, built from the settings."""

from __future__ import annotations

from darkroom.worker.api.services import Services
from darkroom.worker.app.announcements import Announcements
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.jobs.fetched_inputs import FetchedInputs
from darkroom.worker.json.values import JsonObject
from darkroom.worker.qualification.phases import StartUpPhases
from darkroom.worker.qualification.qualifier import Qualifier
from darkroom.worker.qualification.readiness import Readiness
from darkroom.worker.qualification.warm_up import WarmUp
from darkroom.worker.settings.settings import Settings


def build_readiness(
    settings: Settings,
    services: Services,
    inputs: FetchedInputs,
    phases: StartUpPhases,
    announcements: Announcements,
) -> Readiness:
    """Build the owner of the gate."""
    base, config = settings.engine_launch().base_directory, settings.benchmark

    async def fetch_inputs(prompt: JsonObject, engine: EngineClient) -> JsonObject:
        return await inputs.fetch_for(prompt, "benchmark", None, engine)

    return Readiness(
        Qualifier(config, base, settings.folders.state_path, services.requests.modifiers, fetch_inputs),
        WarmUp(settings.warm_up, services.requests.modifiers, fetch_inputs, services.files.models.preload_names),
        services.engines.pool,
        services.jobs.gate,
        services.engines.qualification,
        phases,
        config.on_fail,
        announcements,
    )
