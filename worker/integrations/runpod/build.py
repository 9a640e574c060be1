"""RunPod's loop of a worker, built from its settings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from darkroom.host.distribution import install_command
from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.integrations.runpod.autoscaler import RunPodAutoscaler
from darkroom.worker.settings.environment import runpod_environment
from darkroom.worker.settings.settings import Settings


def build_runpod(settings: Settings, stop_front: Callable[[int], None]) -> RunPodAutoscaler:
    """Build the loop; `stop_front` ends the worker with an exit code.

    Raises SettingsInvalid when the platform's package is not installed.
    """
    if importlib.util.find_spec("runpod") is None:
        raise SettingsInvalid(f"AUTOSCALER: RunPod's package is not installed; {install_command('runpod')}")
    config = settings.runpod_config()
    arguments = [config.front_url, "--concurrency", str(config.num_jobs)]
    arguments += [] if config.front_certificate is None else ["--certificate", str(config.front_certificate)]
    arguments += ["--key-file", str(config.key_file)]
    arguments += ["--refresh-worker"] if config.is_refreshed else []
    arguments += ["--uploads"] if config.has_store else []
    return RunPodAutoscaler(arguments, runpod_environment(), stop_front)
