"""The worker that a command speaks to: at a given address, or the one on this machine with the key for its commands."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.guard.identity.own_key import read_own_key
from darkroom.worker.guard.own_certificate import trusting_context
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.loopback import is_loopback

API_KEY_VARIABLE = "DARKROOM_API_KEY"
INSECURE = "take whatever certificate an https worker shows"


@dataclass(frozen=True, slots=True)
class ChosenWorker:
    """Address of a worker, verification of its certificate, and the key it created for this machine's commands."""

    url: str
    verify: ssl.SSLContext | bool
    own_key: str = ""

    def no_answer(self, error: Exception) -> str:
        hint = "; --insecure takes any certificate" if "certificate" in str(error).lower() else ""
        return f"{self.url} does not answer: {error}{hint}"


def worker_at(url: str, *, is_insecure: bool) -> ChosenWorker:
    """Return the worker at this address; without one the one on this machine, by the settings, with its own key.

    Raises SettingsInvalid.
    """
    if url:
        return ChosenWorker(url.rstrip("/"), not is_insecure)
    settings = load_settings().settings
    tls, own_key = settings.tls_files(), ""
    if is_loopback(urlsplit(settings.local_url).hostname):  # other addresses may go through a proxy of the environment
        own_key = read_own_key(settings.own_key_path)
    if tls is None or is_insecure:
        return ChosenWorker(settings.local_url, not is_insecure, own_key)
    try:
        return ChosenWorker(settings.local_url, trusting_context(tls.certificate), own_key)
    except OSError as error:
        raise SettingsInvalid(f"SSL_CERTFILE: {tls.certificate} cannot be used: {error.strerror or error}") from None
