"""API keys: their text forms, their scopes, and the lookup of a secret.

    SECRET                     a bare secret; its name is made from its digest
    NAME:SECRET[:SCOPES]       SCOPES is `submit+read`, `admin` and the like
    NAME:sha256:HEX[:SCOPES]   the SHA-256 digest in place of the secret, as `darkroom keys new` prints it

Several secrets may share one name, so that an old and a new secret are both valid while clients change over.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
HASHED: Final = "sha256"
FORM: Final = "SECRET, NAME:SECRET[:SCOPES] or NAME:sha256:HEX[:SCOPES]"
SECRET_BYTES: Final = 32


class Scope(StrEnum):
    """A permission of a key: send and cancel jobs, read one's own jobs, operate the worker."""

    SUBMIT = "submit"
    READ = "read"
    ADMIN = "admin"


ALL_SCOPES: Final = frozenset(Scope)
CUSTOMER_SCOPES: Final = frozenset({Scope.SUBMIT, Scope.READ})


class KeyMalformed(ValueError):
    """A key that has none of the accepted forms. The message contains no part of the key except its name."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key: its name, the SHA-256 `digest` of its secret, and its scopes. The secret itself is not stored."""

    name: str
    digest: bytes = field(repr=False)
    scopes: frozenset[Scope]


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file with one key per line.

    `setting` is the name of the setting that gives the path. `scopes` apply to keys whose line names none.
    """

    setting: str
    path: Path
    scopes: frozenset[Scope]


def parse_key(text: str, scopes: frozenset[Scope] = CUSTOMER_SCOPES) -> ApiKey:
    """Parse one key; a key without scopes gets `scopes`. Raises KeyMalformed."""
    parts = text.strip().split(":")
    if len(parts) == 1:
        digest = _digest(parts[0])
        return ApiKey(f"key-{digest.hex()[:8]}", digest, scopes)
    name, is_hashed = parts[0], parts[1].lower() == HASHED and len(parts) > 2
    secret, *rest = parts[2:] if is_hashed else parts[1:]
    if not NAME.fullmatch(name):
        raise KeyMalformed("the name: not usable; expected 1 to 64 letters, digits and . _ -, then a colon")
    if len(rest) > 1:
        raise KeyMalformed(f"key {name}: too many colons; got {len(parts) - 1}, expected {FORM}")
    if is_hashed and not DIGEST.fullmatch(secret):
        raise KeyMalformed(f"key {name}: not a SHA-256 digest; expected 64 hexadecimal digits after {HASHED}:")
    digest = bytes.fromhex(secret) if is_hashed else _digest(secret, name)
    return ApiKey(name, digest, _scopes(name, rest[0]) if rest else scopes)


def parse_keys(texts: Iterable[str], scopes: frozenset[Scope] = CUSTOMER_SCOPES) -> tuple[ApiKey, ...]:
    """Parse several keys. Raises KeyMalformed with the number of the entry that is wrong."""
    keys = []
    for place, text in enumerate(texts, 1):
        try:
            keys.append(parse_key(text, scopes))
        except KeyMalformed as error:
            raise KeyMalformed(f"entry {place}: {error}") from None
    check_distinct(keys)
    return tuple(keys)


def check_distinct(keys: Sequence[ApiKey]) -> None:
    """Raise KeyMalformed if two keys have the same secret, which would then have two names or two sets of scopes."""
    seen: dict[bytes, str] = {}
    for key in keys:
        if key.digest in seen:
            raise KeyMalformed(f"keys {seen[key.digest]} and {key.name}: one secret twice; expected a secret a key")
        seen[key.digest] = key.name


def find_key(keys: Sequence[ApiKey], secret: str) -> ApiKey | None:
    """Return the key with this secret in constant time, or None."""
    digest, found = sha256(secret.encode(errors="surrogatepass")).digest(), None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = key
    return found


def new_key(name: str, scopes: frozenset[Scope]) -> tuple[str, str]:
    """Generate a secret and the key-file line that contains its digest. Raises KeyMalformed."""
    secret = secrets.token_urlsafe(SECRET_BYTES)
    shown = [scope.value for scope in Scope if scope in scopes]
    line = f"{name}:{HASHED}:{_digest(secret).hex()}:{'+'.join(shown)}"
    parse_key(line)
    return secret, line


def read_scopes(text: str) -> frozenset[Scope]:
    """Parse scopes such as `submit+read`; `admin` includes all. Raises KeyMalformed."""
    try:
        scopes = frozenset(Scope(part.strip().lower()) for part in text.split("+"))
    except ValueError:
        raise KeyMalformed(f"unknown scope; expected {', '.join(Scope)}, joined by +") from None
    return ALL_SCOPES if Scope.ADMIN in scopes else scopes


def _digest(secret: str, name: str = "") -> bytes:
    if not secret.strip():
        raise KeyMalformed(f"{f'key {name}: ' if name else ''}the secret is empty; expected {FORM}")
    return sha256(secret.strip().encode()).digest()


def _scopes(name: str, text: str) -> frozenset[Scope]:
    try:
        return read_scopes(text)
    except KeyMalformed as error:
        raise KeyMalformed(f"key {name}: {error}") from None
