"""API keys: their text forms, the lookup of a secret, and key files that are reloaded while the worker runs.

    SECRET                     a bare secret; its name is made from its digest
    NAME:SECRET[:SCOPES]       SCOPES is `submit+read`, `admin` and the like
    NAME:sha256:HEX[:SCOPES]   the SHA-256 digest in place of the secret, as `darkroom keys new` prints it

Several secrets may share one name, so that an old and a new secret are both valid while clients change over.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import structlog

from worker.errors import SettingsInvalid
from worker.settings.api_keys import ALL_SCOPES, CUSTOMER_SCOPES, Scope

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
HASHED: Final = "sha256"
FORM: Final = "SECRET, NAME:SECRET[:SCOPES] or NAME:sha256:HEX[:SCOPES]"
LOOK_SECONDS: Final = 1.0
SECRET_BYTES: Final = 32

log = structlog.get_logger("keys")


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


class KeyRing:
    """All keys of the worker: fixed keys, and keys of files that are reloaded when they change.

    If a file cannot be read or has a malformed line, its last valid keys stay in force.
    """

    def __init__(
        self,
        fixed: Sequence[ApiKey],
        files: Sequence[KeyFile] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read all key files. Raises SettingsInvalid with the setting and the line."""
        self._clock = clock
        self._fixed = tuple(fixed)
        self._files = tuple(files)
        self._read = {file: _KeysRead.of(file, self._fixed) for file in files}
        self._looked_at = clock()
        self.is_empty = not fixed and not files

    def find(self, secret: str) -> ApiKey | None:
        """Return the key with this secret, or None. Changed files are reloaded first."""
        self._look()
        return find_key([*self._fixed, *(key for read in self._read.values() for key in read.keys)], secret)

    def _look(self) -> None:
        now = self._clock()
        if not self._files or now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        for file in self._files:
            before = self._read[file]
            stamp = _stamp(file.path)
            if stamp == before.stamp:
                continue
            try:
                self._read[file] = _KeysRead.of(file, self._fixed)
                log.info("keys file read", setting=file.setting, count=len(self._read[file].keys))
            except SettingsInvalid as error:
                self._read[file] = _KeysRead(before.keys, stamp)
                log.error("keys file unusable, last keys kept", reason=error.message)


@dataclass(frozen=True, slots=True)
class _KeysRead:
    """The keys of a file in the version that `stamp` identifies."""

    keys: tuple[ApiKey, ...]
    stamp: tuple[int, ...] | None

    @staticmethod
    def of(file: KeyFile, fixed: Sequence[ApiKey]) -> _KeysRead:
        stamp = _stamp(file.path)  # taken before reading, so that a concurrent change is detected
        try:
            lines = file.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise SettingsInvalid(f"{file.setting}: {file.path} cannot be read: {reason}") from None
        keys = []
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                keys.append(parse_key(line, file.scopes))
            except KeyMalformed as error:
                raise SettingsInvalid(f"{file.setting}: {file.path}, line {number}: {error}") from None
        try:
            check_distinct([*fixed, *keys])
        except KeyMalformed as error:
            raise SettingsInvalid(f"{file.setting}: {file.path}: {error}") from None
        return _KeysRead(tuple(keys), stamp)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(secret: str, name: str = "") -> bytes:
    if not secret.strip():
        raise KeyMalformed(f"{f'key {name}: ' if name else ''}the secret is empty; expected {FORM}")
    return sha256(secret.strip().encode()).digest()


def _scopes(name: str, text: str) -> frozenset[Scope]:
    try:
        return read_scopes(text)
    except KeyMalformed as error:
        raise KeyMalformed(f"key {name}: {error}") from None
