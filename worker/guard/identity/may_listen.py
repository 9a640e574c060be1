"""Check before the start that a worker is not open to everyone by mistake."""

from __future__ import annotations

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.guard.identity.key_ring import KeyRing
from darkroom.worker.settings.settings import Settings, is_of_this_machine


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
