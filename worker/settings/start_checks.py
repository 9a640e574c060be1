"""Checks of settings that parse: configurations without effect are reported."""

from __future__ import annotations

from darkroom.worker.settings.settings import Settings


def find_open_doors(settings: Settings) -> list[str]:
    """Return warnings for a platform's variables that are set in part."""
    warnings = []
    if settings.listen_host != settings.listener.host and settings.platform == "runpod":
        warnings.append(
            f"WORKER_HOST is {settings.listener.host} without any key: the port is open to this machine alone, and "
            "RunPod's jobs come all the same"
        )
    if settings.asks_for_keys or settings.access.is_unsecured:
        return warnings
    if settings.vast.container_id is not None:
        warnings.append(
            "CONTAINER_ID is set without MASTER_TOKEN and API_KEYS: nothing is reported to Vast, and the signatures of "
            "its envelopes are not checked"
        )
    return warnings


def find_incomplete_store(settings: Settings) -> list[str]:
    """Return a warning where S3 is configured in part, since nothing is uploaded then."""
    missing = settings.s3.missing_names
    if len(missing) in (0, 3):
        return []
    return [f"{' and '.join(missing)} not set: only outputs of requests that bring what is missing are uploaded"]


def find_idle_sandbox(settings: Settings) -> list[str]:
    """Return a warning where a sandbox is requested and the engine is not ours to sandbox."""
    if settings.sandbox.level == "off" or not settings.engine.urls:
        return []
    return ["ENGINE_SANDBOX has no effect on the engines of ENGINE_URL"]
