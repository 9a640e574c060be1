"""Callers of the worker: which key a request used, from which address, and what it may do. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Scope(StrEnum):
    """A right of a key: send and cancel jobs, read one's own, operate the worker."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(Scope)
CUSTOMER_SCOPES: Final = frozenset({Scope.SUBMIT, Scope.READ})


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
        """True if a job of this owner is the caller's own; None is the owner of jobs older than ownership."""
        return owner is None or owner == self.key_name

    def may_see(self, owner: str | None) -> bool:
        """True if a job of this owner exists for the caller: one's own, and to an operator all."""
        return self.is_admin or self.owns(owner)
