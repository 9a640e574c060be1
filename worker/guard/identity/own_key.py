"""The API key of the front's own commands and child processes, which then need no trust in a loopback address.

A new key is generated at each start. It has an operator's scopes and is stored in the state directory, readable only by
the front's user.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from darkroom.worker.settings.settings import own_key_path

SECRET_BYTES = 32


def read_own_key(path: Path) -> str:
    """Return the key of the running front, or an empty string if there is none or another user owns the file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


class OwnKey:
    """The own key of one start, on disk between `publish` and `withdraw`."""

    def __init__(self, state_directory: Path) -> None:
        self.secret = SecretStr(secrets.token_urlsafe(SECRET_BYTES))
        self._path = own_key_path(state_directory)

    def publish(self) -> None:
        """Write the key with mode 0600.

        The state directory must be locked by this process, else another front's key would be overwritten.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(self.secret.get_secret_value())
        fresh.replace(self._path)

    def withdraw(self) -> None:
        """Delete the key file."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
