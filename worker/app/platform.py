"""Platform of the worker, built from the settings."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from darkroom.worker.api.services import PlatformRoutes
from darkroom.worker.app.integrations import runpod_autoscaler, unsigned_envelopes, vast_parts
from darkroom.worker.autoscaler.autoscaler import Autoscaler, FanOut
from darkroom.worker.autoscaler.plain import PlainAutoscaler
from darkroom.worker.autoscaler.platform import Platform
from darkroom.worker.settings.platforms import VastTiming
from darkroom.worker.settings.settings import Settings


def build_platform(
    settings: Settings,
    registry: CollectorRegistry,
    cancel_job: Callable[[str], None],
    stop_front: Callable[[int], None],
    timing: VastTiming,
) -> tuple[Platform, PlatformRoutes | None]:
    """Build the platform from the settings, and its own routes where it has some.

    `cancel_job` ends a job by its id, if there is one that has not ended; `stop_front` ends all, with an exit code.

    Raises SettingsInvalid when the platform's package is not installed.
    """
    members: list[Autoscaler] = [PlainAutoscaler(registry)]
    if settings.platform == "runpod":
        members.append(runpod_autoscaler(settings, stop_front))
    workload = settings.autoscaler.workload
    if not settings.is_under_vast and not settings.vast.master_token.get_secret_value():
        return Platform(FanOut(members), unsigned_envelopes(), workload), None
    vast = vast_parts(settings, cancel_job, timing)
    if vast.autoscaler is not None:
        members.append(vast.autoscaler)
    is_reporting = vast.autoscaler is not None
    platform = Platform(
        FanOut(members), vast.envelopes, workload, expects_envelopes=is_reporting, background=vast.background
    )
    return platform, vast.routes
