"""KeyRing: the keys of the settings and of key files, which are reloaded while the worker runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.api_keys import ApiKey, KeyFile, KeyMalformed, check_distinct, find_key, parse_key

LOOK_SECONDS: Final = 1.0

log = structlog.get_logger("keys")


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
        return find_key(self.listed(), secret)

    def listed(self) -> list[ApiKey]:
        """Return all keys, those of the settings first. Changed files are reloaded first."""
        self._look()
        return [*self._fixed, *(key for read in self._read.values() for key in read.keys)]

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
