"""Callers of the worker: the key and the address of a request, and its scopes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.worker.settings.api_keys import Scope


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of one request.

    `key_name` is the name of the API key, empty for a caller without one (loopback, Vast's envelope, an open worker).
    `address` is the peer's IP address, empty where a proxy hides it. Neither is a secret.
    """

    key_name: str
    address: str
    scopes: frozenset[Scope]

    @property
    def is_admin(self) -> bool:
        """True for a caller who may operate the worker and see every job."""
        return Scope.ADMIN in self.scopes

    def owns(self, owner: str | None) -> bool:
        """Return True if a job of this owner is the caller's own. Jobs older than ownership have the owner None."""
        return owner is None or owner == self.key_name

    def may_see(self, owner: str | None) -> bool:
        """Return True if a job of this owner is visible to the caller: an own job, or any job for an operator."""
        return self.is_admin or self.owns(owner)
