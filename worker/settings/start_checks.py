"""Checks of settings that parse: a worker open to everybody is refused, configurations without effect are reported."""

from __future__ import annotations

from worker.errors import SettingsInvalid
from worker.guard.identity.key_ring import KeyRing
from worker.settings.settings import Settings, is_of_this_machine


def check_may_listen(settings: Settings) -> None:
    """Refuse a worker that would accept everybody's jobs without explicit consent, and unusable files of keys.

    Raises SettingsInvalid.
    """
    KeyRing(settings.access.keys, settings.access.key_files)
    if settings.asks_for_keys or settings.access.is_unsecured or is_of_this_machine(settings.listen_host):
        return
    raise SettingsInvalid(
        f"WORKER_HOST: open to everyone who reaches the port; got {settings.listen_host} without any key, expected "
        "API_KEYS, API_KEYS_FILE, ADMIN_API_KEYS or MASTER_TOKEN to be set (`darkroom keys new NAME` makes a key), or "
        "WORKER_HOST=127.0.0.1, or UNSECURED=true where everyone is meant to use the worker"
    )


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
