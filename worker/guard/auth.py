"""Authentication: identify the caller of a request and its scopes (table in `docs/security.md`).

An API key is checked first. A request without one is accepted in three cases. It comes from this machine itself, which
makes its caller an operator unless TRUST_LOOPBACK is off. It contains Vast's envelope, whose signature
`worker/integrations/vast/` checks. Or the worker is open: neither a key nor MASTER_TOKEN is set. An envelope is not
accepted where signatures cannot be checked, since anyone could then bypass the keys with it.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

from pydantic import SecretStr

from darkroom.worker.errors import Forbidden, ScopeMissing, Unauthorized, WrongKey
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.identity.key_ring import KeyRing
from darkroom.worker.guard.identity.loopback import direct_host, is_own_name
from darkroom.worker.settings.access import AuthConfig
from darkroom.worker.settings.api_keys import ALL_SCOPES, CUSTOMER_SCOPES, Scope
from darkroom.worker.settings.loopback import is_loopback

MAX_SHOWN_HOST: Final = 100
MAX_NAMES: Final = 256  # hosts and addresses whose check is remembered: the same few in every request
OTHER_SCHEMES: Final = frozenset({"basic", "digest", "token", "apikey", "key"})
FOREIGN_KEY_HEADERS: Final = ("x-api-key", "api-key", "x-auth-token")
"""Headers in which other services take their keys."""

Headers = Sequence[tuple[str, str]]


class Gatekeeper:
    """Identification of callers. `own_key` is the key of the front's own commands and child processes."""

    def __init__(self, config: AuthConfig, own_key: SecretStr | None = None) -> None:
        """Read the key files. Raises SettingsInvalid for a file that cannot be used."""
        self._config = config
        self._own_key = b"" if own_key is None else own_key.get_secret_value().encode()
        self._is_own_name = lru_cache(maxsize=MAX_NAMES)(partial(is_own_name, public_host=config.public_host))
        self._ring = KeyRing(config.keys, config.key_files)
        self._is_under_vast = bool(config.master_token.get_secret_value())
        self._is_open = not self._is_under_vast and self._ring.is_empty

    def check(self, peer: str | None, headers: Headers, *, has_vast_envelope: bool = False) -> Identity:
        """Identify the caller of a request from its peer's address and its headers, whose names are lower case.

        Raises Unauthorized, WrongKey, and Forbidden for a page of another name on an open worker.
        """
        direct = direct_host(peer, (name for name, _ in headers))
        address, secret = direct or "", bearer_token(headers)
        if secret:
            known = self._known(secret, address)
            if known is not None:
                return known
        if self._config.is_unsecured or self._is_own(direct, headers):
            return Identity("", address, ALL_SCOPES)
        if has_vast_envelope and self._is_under_vast:
            return Identity("", address, CUSTOMER_SCOPES)
        if self._is_open:
            self._check_host(headers)
            return Identity("", address, CUSTOMER_SCOPES)
        if secret:
            raise WrongKey("Authorization: this API key is none of the worker's; it may have been replaced")
        raise Unauthorized(_missing_key(headers))

    def named_scopes(self) -> list[tuple[str, frozenset[Scope]]]:
        """Return the name and the scopes of every API key; a name whose secrets change over once, with all scopes."""
        scopes: dict[str, frozenset[Scope]] = {}
        for key in self._ring.listed():
            scopes[key.name] = scopes.get(key.name, frozenset()) | key.scopes
        return list(scopes.items())

    def _known(self, secret: str, address: str) -> Identity | None:
        key = self._ring.find(secret)
        if key is not None:
            return Identity(key.name, address, key.scopes)
        is_own = bool(self._own_key) and hmac.compare_digest(self._own_key, secret.encode(errors="surrogatepass"))
        return Identity("", address, ALL_SCOPES) if is_own else None

    def _is_own(self, direct: str | None, headers: Headers) -> bool:
        return self._config.trusts_loopback and is_loopback(direct) and self._has_own_host(headers)

    def _has_own_host(self, headers: Headers) -> bool:
        hosts = [value for name, value in headers if name == "host"]
        return bool(hosts) and all(map(self._is_own_name, hosts))

    def _check_host(self, headers: Headers) -> None:
        """Raise Forbidden for a Host that may be a web page's.

        An open worker accepts requests only from programs on this machine.
        """
        if not self._has_own_host(headers):
            host = next((value for name, value in headers if name == "host"), "")[:MAX_SHOWN_HOST]
            raise Forbidden(
                f"Host: not this worker's name; got {host!r}, expected an IP address, localhost or the host of "
                "PUBLIC_URL, or an API key"
            )


def require(caller: Identity, scope: Scope) -> None:
    """Raise ScopeMissing if the caller's key lacks the scope, or Unauthorized if the caller has no key."""
    if scope in caller.scopes:
        return
    if caller.key_name:
        message = f"key {caller.key_name}: scope {scope.value} missing; it has {'+'.join(sorted(caller.scopes))}"
        raise ScopeMissing(message, scope=scope.value)
    raise Unauthorized("This is for the worker's operator: an API key is needed, or to come from the machine itself")


def _missing_key(headers: Headers) -> str:
    """Return the message for a request without a bearer token, which names what came in its place."""
    names = {name for name, _ in headers}
    scheme = next((value.partition(" ")[0] for name, value in headers if name == "authorization"), "")
    if scheme.lower() == "bearer":
        got = "; got an empty one"
    elif scheme.lower() in OTHER_SCHEMES:
        got = f"; got the scheme {scheme}"
    elif "authorization" in names:
        got = "; got another scheme or none"  # perhaps the bare key, which is not repeated
    else:
        got = next((f"; got the header {name}" for name in FOREIGN_KEY_HEADERS if name in names), "")
    return f"An API key is needed, expected Authorization: Bearer <key>{got}"


def bearer_token(headers: Headers) -> str:
    """Return the bearer token of the Authorization header, or an empty string if there is none."""
    given = next((value for name, value in headers if name == "authorization"), "")
    scheme, _, secret = given.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""
