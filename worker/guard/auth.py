"""Who may send jobs: everyone, until MASTER_TOKEN or API_KEYS is set.

Then a request needs an API key, or comes from this machine (unless TRUST_LOOPBACK is off), or bears Vast's envelope,
whose signature `worker/autoscaler/vast/` checks. An envelope excuses nobody where signatures cannot be checked (no
MASTER_TOKEN): it would be the way around the keys.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256

from pydantic import SecretStr

from worker.errors import Unauthorized
from worker.guard.identity import ALL_SCOPES, Identity
from worker.guard.loopback import ITSELF, is_loopback
from worker.setting_slices import AuthConfig


class Gatekeeper:
    """Checks the credential of a request. Stateless.

    `client_host` is None for a request that a proxy passed on (`direct_host`).
    """

    def __init__(self, config: AuthConfig) -> None:
        self._config = config
        self._is_under_vast = bool(config.master_token.get_secret_value())
        self._asks_for_keys = self._is_under_vast or bool(config.api_keys)

    def check(self, client_host: str | None, authorization: str | None, has_vast_envelope: bool) -> Identity:
        """Identify the caller of a request. Raises Unauthorized."""
        address = client_host or ""
        for key in self._config.api_keys:
            if has_key(authorization, [key]):
                return Identity(f"key-{sha256(key.get_secret_value().encode()).hexdigest()[:8]}", address, ALL_SCOPES)
        is_open = not self._asks_for_keys or self._config.is_unsecured
        if is_open or (has_vast_envelope and self._is_under_vast) or self._is_own(client_host):
            return Identity("", address, ALL_SCOPES)
        raise Unauthorized("An API key is needed: Authorization: Bearer <key>")

    def check_admin(self, client_host: str | None, authorization: str | None) -> None:
        """Who may tell the worker itself what to do: a key, this machine, and with UNSECURED everyone.

        Stricter than `check`: without any key set only this machine. Raises Unauthorized.
        """
        if self._config.is_unsecured or self._is_own(client_host) or has_key(authorization, self._config.api_keys):
            return
        raise Unauthorized(
            "This is for the worker's operator: an API key is needed, or to come from the machine itself"
        )

    def _is_own(self, client_host: str | None) -> bool:
        return client_host == ITSELF or (self._config.trusts_loopback and is_loopback(client_host))


def has_key(authorization: str | None, keys: Sequence[SecretStr]) -> bool:
    """Whether the header bears one of the keys. Takes the same time whichever it is, and whatever its length."""
    scheme, _, given = (authorization or "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    digest = sha256(given.strip().encode()).digest()
    matches = [hmac.compare_digest(digest, sha256(key.get_secret_value().encode()).digest()) for key in keys]
    return any(matches)
